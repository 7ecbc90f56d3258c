#!/bin/busybox sh
# The first process of a guest. It obeys the host over a virtio-serial port: a line "ID BASE64" is a script, which runs
# beside the others; its end is told as "done ID STATUS BASE64" with what it printed. Each line begins with an empty one,
# so that a line that a reset has cut off spoils no other.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/busybox HOME=/ LC_ALL=C
/bin/busybox mkdir -p /busybox /proc /sys /tmp /mnt /run
/bin/busybox --install -s /busybox
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
for module in $(cat /modules/order); do insmod "/modules/$module.ko"; done
# The device is found beside this script; it says that it is there by its node.
until [ -e /dev/vport1p1 ] || [ -e /dev/vport0p1 ]; do usleep 20000; done
exec 3<>"$(echo /dev/vport*p1)"

answer() {
    # A script ends with its first command that fails.
    sh -e "/tmp/$1.sh" >"/tmp/$1.out" 2>&1
    status=$?
    { printf '\ndone %s %s ' "$1" "$status"; base64 "/tmp/$1.out" | tr -d '\n'; echo; } >"/tmp/$1.line"
    flock /tmp/port cat "/tmp/$1.line" >&3
    rm "/tmp/$1.sh" "/tmp/$1.out" "/tmp/$1.line"
}

printf '\nready %s\n' "$(cut -d' ' -f1 /proc/uptime)" >&3
while read -r id script <&3; do
    echo "$script" | base64 -d >"/tmp/$id.sh"
    answer "$id" &
done
poweroff -f
