#!/bin/sh
# A Ceph cluster for tests, on loopback: a monitor, a manager and three OSDs, with users and keys as a real one has them.
#
#   cluster.sh up FOLDER        starts it, and waits until it can be used: 20 to 40 s
#   cluster.sh mend FOLDER      starts the OSDs that have ended, and waits until all data are where they belong
#   cluster.sh down FOLDER      ends what was started there, and removes the folder
#
# FOLDER/ceph.conf is its configuration, FOLDER/run has the number of each process. PORT and the 300 ports above it are used.
set -eu

[ $# -eq 2 ] || { sed -n '2,/^$/p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
mkdir -p "$2"
folder=$(cd "$2" && pwd)
conf=$folder/ceph.conf
port=${PORT:-24300}
osds="0 1 2"
export CEPH_CONF="$conf"

fail() { echo "cluster.sh: $*" >&2; exit 1; }

# Waits for a condition, for at most two minutes.
wait_for() {
  what=$1; shift
  for _ in $(seq 400); do "$@" >/dev/null 2>&1 && return; sleep 0.3; done
  fail "$what: see $folder/log"
}

write_conf() {
  cat > "$conf" <<END
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:127.0.0.1:$port]
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr1 = false
ms bind port min = $((port + 1))
ms bind port max = $((port + 300))
keyring = $folder/\$name.keyring
run dir = $folder/run
admin socket = $folder/run/\$name.asok
log file = $folder/log/\$name.log
log to stderr = false
mon cluster log file = $folder/log/cluster.log
crash dir = $folder/log
osd pool default size = 2
osd pool default min size = 1
osd pool default pg num = 16
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool delete = true
mon warn on insecure global id reclaim allowed = false
auth allow insecure global id reclaim = false
[mon]
mon data = $folder/mon
mon data avail crit = 1
[mgr]
mgr data = $folder/mgr
mgr initial modules =
[client]
admin socket =
[osd]
osd data = $folder/osd.\$id
osd objectstore = bluestore
osd heartbeat interval = 1
osd heartbeat grace = 5
osd memory target = 939524096
osd op num shards = 2
osd op num threads per shard = 1
bluestore block size = 4294967296
bluestore block create = true
osd class load list = *
osd class default list = *
END
}

launch() {
  name=$1; shift
  setsid "$@" -f -c "$conf" </dev/null >"$folder/log/$name.out" 2>&1 &
  echo $! > "$folder/run/$name.pid"
}

osds_are_up() { ceph osd stat -f json | grep -q '"num_up_osds":3'; }
is_clean() { ceph pg stat | grep -qE '^[0-9]+ pgs: [0-9]+ active\+clean;'; }

up() {
  [ -e "$conf" ] && fail "there is a cluster in $folder: end it with down first"
  mkdir -p "$folder/run" "$folder/log" "$folder/mon" "$folder/mgr"
  write_conf
  keys=$folder/client.admin.keyring
  ceph-authtool --create-keyring "$keys" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
  ceph-authtool "$keys" --gen-key -n mon. --cap mon 'allow *' >/dev/null
  cp "$keys" "$folder/mon.keyring"
  monmaptool --create --clobber --fsid "$(sed -n 's/^fsid = //p' "$conf")" --addv a "[v2:127.0.0.1:$port]" "$folder/monmap" >/dev/null
  ceph-mon --mkfs -i a --monmap "$folder/monmap" --keyring "$folder/mon.keyring" >"$folder/log/mkfs.out" 2>&1
  launch mon.a ceph-mon -i a
  wait_for "the monitor does not answer" timeout 5 ceph --connect-timeout 2 mon stat
  ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' -o "$folder/mgr.x.keyring" 2>/dev/null
  launch mgr.x ceph-mgr -i x
  for n in $osds; do
    mkdir -p "$folder/osd.$n"
    id=$(cat /proc/sys/kernel/random/uuid)
    ceph osd new "$id" "$n" >/dev/null 2>&1
    ceph auth get-or-create "osd.$n" mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' -o "$folder/osd.$n.keyring" 2>/dev/null
    ceph-osd --mkfs -i "$n" --osd-uuid "$id" >"$folder/log/mkfs-osd.$n.out" 2>&1 || fail "OSD $n cannot be made: see $folder/log"
    launch "osd.$n" ceph-osd -i "$n"
  done
  wait_for "an OSD does not come up" osds_are_up
  ceph osd pool create vms 16 16 >/dev/null 2>&1
  ceph osd pool application enable vms rbd >/dev/null 2>&1
  wait_for "the pool does not become clean" is_clean
  rbd pool init vms
  # As the manual has it.
  ceph auth get-or-create client.sluice mon 'profile rbd' osd 'profile rbd pool=vms' -o "$folder/client.sluice.keyring" 2>/dev/null
}

# Whether a process was started here and still runs.
is_ours() { tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qF -- "$conf"; }

mend() {
  for n in $osds; do
    is_ours "$(cat "$folder/run/osd.$n.pid")" || launch "osd.$n" ceph-osd -i "$n"
  done
  wait_for "an OSD does not come up" osds_are_up
  wait_for "the data do not become clean" is_clean
}

down() {
  for file in "$folder"/run/*.pid; do
    [ -e "$file" ] || continue
    process=$(cat "$file")
    is_ours "$process" || continue
    kill -CONT "$process"
    kill -KILL "$process"
  done
  rm -rf -- "$folder"
}

case $1 in
  up) up ;;
  mend) mend ;;
  down) down ;;
  *) fail "up, mend or down?" ;;
esac
