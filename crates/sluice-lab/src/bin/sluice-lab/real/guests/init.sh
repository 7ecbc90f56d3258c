#!/bin/busybox sh
# The first process of a guest. Kernel parameters set the load: outstanding, writers (how many of these are writes), request_bytes.
# The host sends a word a line over a virtio-serial port: "go" starts the load, "look" is answered with the uptime and the kernel's counters of
# the disk. The guest powers off when the host has closed the port.
export PATH=/bin HOME=/ LC_ALL=C
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod "/modules/$module.ko"; done
# The device files appear asynchronously.
until [ -b /dev/vda ] && { [ -e /dev/vport1p1 ] || [ -e /dev/vport0p1 ]; }; do usleep 20000; done
exec 3<>"$(echo /dev/vport*p1)"
# No request waits in the guest for another one, and none is merged.
echo none >/sys/block/vda/queue/scheduler
echo 2 >/sys/block/vda/queue/nomerges
places=$(($(cat /sys/block/vda/size) * 512 / request_bytes / outstanding))

# One request after the other: first from part $1 of the disk to its end, then the whole disk, for ever. So a new process is rarely
# needed. It begins when the pipe has a writer.
mkfifo /go
stream() {
    : </go
    place=$(($1 * places))
    while :; do
        if [ "$1" -lt "$writers" ]; then
            dd if=/dev/zero of=/dev/vda bs="$request_bytes" oflag=direct seek="$place" conv=notrunc
        else
            dd if=/dev/vda of=/dev/null bs="$request_bytes" iflag=direct skip="$place"
        fi
        place=0
    done
}

number=0
while [ "$number" -lt "$outstanding" ]; do
    stream "$number" 2>/dev/null &
    number=$((number + 1))
done
echo ready >&3
while read -r word <&3; do
    case "$word" in
    go) exec 4<>/go ;;
    look)
        read -r uptime _ </proc/uptime
        read -r counters </sys/block/vda/stat
        echo "$uptime $counters" >&3
        ;;
    esac
done
poweroff -f
