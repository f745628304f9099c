# What the legs share; each sources it. A leg records its checks with pass and fail, waits with await, and ends with finish.
# /host is shared with the host: env (what to run with), the programs, results, and what is worth keeping.
. /host/env
IP=10.9.0.1
PORT=3260
IQN=iqn.2026-11.com.example:interop
dmesg -n 4
for p in iserd iser iwarp peer verbs.test; do [ -e /host/$p ] && cp /host/$p /usr/bin/; done
[ -e /host/reset ] || : >/host/results
failures=0

record() { doing "what follows: $*" && echo "$*" >>/host/results && echo "[${SECONDS} s] $*"; }
pass() { record "PASS $*"; }
fail() { record "FAIL $*" && failures=$((failures + 1)); }
note() { record "NOTE $*"; }

# doing says what the leg is at. Nothing may go on for longer than PATIENCE seconds, far beyond what a starved guest needs: then
# the leg is given up, and says what it was at and what the kernel was waiting for.
PATIENCE=900
doing() { echo "$*" >/tmp/doing; }
watchdog() {
	while sleep 5; do
		[ $(($(date +%s) - $(stat -c %Y /tmp/doing))) -ge $PATIENCE ] || continue
		fail "no end within $PATIENCE s: $(cat /tmp/doing)"
		ps
		echo w >/proc/sysrq-trigger
		finish
	done
}

# check NAME COMMAND...: the command succeeds.
check() {
	local name=$1 status
	shift
	doing "$name"
	"$@" >/tmp/check.out 2>&1
	status=$?
	if [ $status = 0 ]; then pass "$name"; return 0; fi
	fail "$name (status $status: $*)"
	cat /tmp/check.out
	return 1
}

# must NAME COMMAND...: as check, but without it the rest makes no sense.
must() { check "$@" || finish; }

# await SECONDS WHAT COMMAND...: polls until the command succeeds. Says what it waited for in vain.
await() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	doing "waiting for $what"
	until "$@" >/dev/null 2>&1; do
		if [ $SECONDS -ge $end ]; then
			fail "waited in vain for $what"
			return 1
		fi
		sleep 0.1
	done
}

finish() {
	capture_stop
	for l in /tmp/*.log; do
		[ -s "$l" ] || continue
		echo "--- $l"
		tail -n 150 "$l"
	done
	echo "--- kernel"
	dmesg | grep -v 'speed is unknown' | tail -n 80
	echo $failures >/host/finished
	[ $BASHPID = $$ ] || { sync && poweroff -f; } # the watchdog
	exit $((failures > 0))
}
doing "the start"
watchdog &

# siw_up: one siw device for all traffic. siw cannot resolve 127.0.0.1 on lo, so it sits on a dummy device; packets between
# its own addresses still cross lo, which sets the MTU and is where to capture.
siw_up() {
	modprobe -a ib_uverbs libcrc32c crc32c-intel crc32c_generic rdma_ucm
	modprobe dummy numdummies=0
	insmod /siw/siw$VARIANT.ko || finish
	ip link set lo mtu $MTU
	ip link add dummy0 type dummy
	ip addr add $IP/24 dev dummy0
	ip link set dummy0 mtu $((MTU > 65535 ? 65535 : MTU)) up
	rdma link add siw0 type siw netdev dummy0 || finish
	ulimit -l unlimited
}

# capture_start FILTER: from here to capture_stop into /host/session.pcap.
capture_start() {
	tcpdump -i lo -Z root -U -s 0 -B 65536 -w /host/session${1:+-$1}.pcap $2 2>/tmp/tcpdump.log &
	TCPDUMP=$!
	await 30 tcpdump grep -q listening /tmp/tcpdump.log
}
capture_stop() {
	[ -n "$TCPDUMP" ] || return 0
	local last=-1 now end=$((SECONDS + 60)) # nothing more to come once the file stays as it is
	while [ $SECONDS -lt $end ] && now=$(stat -c %s /host/session*.pcap | tr '\n' ' ') && [ "$now" != "$last" ]; do
		last=$now
		sleep 0.5
	done
	kill -INT $TCPDUMP
	wait $TCPDUMP
	TCPDUMP=
	grep -q '^0 packets dropped by kernel' /tmp/tcpdump.log || note "the capture has holes: $(grep 'dropped by kernel' /tmp/tcpdump.log)"
}

# iserd_up ARGS...: our target on $IP:$PORT.
iserd_up() {
	: >/tmp/iserd.ready
	iserd $CRC --listen $IP:$PORT --target $IQN --log-level info "$@" >/tmp/iserd.ready 2>>/tmp/iserd.log &
	ISERD=$!
	await 60 "iserd" grep -q '^ready' /tmp/iserd.ready || finish
}
iserd_down() {
	kill $ISERD
	wait $ISERD
	check "iserd ends with status 0 on SIGTERM" [ $? = 0 ]
}

# iserd_config: our target with /tmp/iserd.toml, which says where it listens; ctl speaks with it.
iserd_config() {
	: >/tmp/iserd.ready
	iserd $CRC --config /tmp/iserd.toml --control /tmp/iserd.sock --log-level info >/tmp/iserd.ready 2>>/tmp/iserd.log &
	ISERD=$!
	await 60 "iserd" grep -q '^ready' /tmp/iserd.ready || finish
}
ctl() { iserd ctl --socket /tmp/iserd.sock "$@"; }

# fio_start DEVICE: writes and verifies the device's first 4 MiB, over and over, until fio_stop, which fails if any round did. A
# round is a line of /tmp/fio.rounds.
fio_start() {
	rm -f /tmp/fio.stop /tmp/fio.failed
	: >/tmp/fio.rounds
	while ! [ -e /tmp/fio.stop ]; do
		fio_round $1 >/tmp/fio.log 2>&1 || { : >/tmp/fio.failed; break; }
		echo >>/tmp/fio.rounds
	done &
	FIO=$!
}
fio_round() {
	fio --name=verify --filename=$1 --size=4M --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=4k-64k \
		--verify=crc32c --verify_fatal=1 --randrepeat=1 "${@:2}"
}
fio_rounds() { [ -e /tmp/fio.failed ] || [ $(wc -l </tmp/fio.rounds) -ge $1 ]; }
fio_goes_on() { # two more rounds: the last began after now
	local n=$(($(wc -l </tmp/fio.rounds) + 2))
	await 600 "fio to go on" fio_rounds $n && ! [ -e /tmp/fio.failed ]
}
fio_stop() {
	: >/tmp/fio.stop
	wait $FIO
	! [ -e /tmp/fio.failed ] || { cat /tmp/fio.log; return 1; }
}

# initiator_up: open-iscsi's daemon, for iser and tcp.
initiator_up() {
	modprobe -a iscsi_tcp ib_iser sd_mod sg
	mkdir -p /etc/iscsi /run/lock /var/lib/iscsi
	echo InitiatorName=iqn.2026-11.com.example:initiator >/etc/iscsi/initiatorname.iscsi
	sed -i '/^iscsid.startup/d; s/^node.startup.*/node.startup = manual/
		s/^node.conn\[0\].timeo.login_timeout.*/node.conn[0].timeo.login_timeout = 30/' /etc/iscsi/iscsid.conf
	iscsid -f -d 1 >/tmp/iscsid.log 2>&1 &
	await 30 iscsid iscsiadm -m iface
}

# node IFACE: the node record of our target over iser or default (TCP). set_node KEY VALUE changes it.
node() {
	iscsiadm -m node -o delete >/dev/null 2>&1
	iscsiadm -m node -T $IQN -p $IP:$PORT,1 -I $1 -o new
}
set_node() { iscsiadm -m node -T $IQN -o update -n "$1" -v "$2"; }
login() { timeout 90 iscsiadm -m node -T $IQN -p $IP:$PORT,1 --login; }
logout() { timeout 90 iscsiadm -m node -T $IQN -p $IP:$PORT,1 --logout; }

# disk LUN: the block device of a LUN of the session, waited for.
disk_name() { ls -d /sys/class/iscsi_session/session*/device/target*/*:*:*:$1/block/sd* 2>/dev/null | sed 's:.*/::' | head -1; }
disk_there() { d=$(disk_name $1) && [ -n "$d" ] && [ -b /dev/$d ] && [ "$(cat /sys/block/$d/size)" -gt 0 ]; }
no_disks() { ! ls /sys/class/iscsi_session/session* >/dev/null 2>&1 && ! ls -d /sys/block/sd* >/dev/null 2>&1; }
disk() { await 60 "LUN $1" disk_there $1 && echo /dev/$(disk_name $1); }

sum() { sha256sum | cut -d' ' -f1; }
same() { cmp "$@"; }

# warnings: what the kernel said since the last call that it should not have.
seen=0
warnings() {
	local all
	dmesg >/tmp/dmesg.now
	all=$(wc -l </tmp/dmesg.now)
	tail -n +$((seen + 1)) /tmp/dmesg.now |
		grep -E 'conn error|WARNING|BUG|Oops|I/O error|Buffer I/O|critical|siw.*(error|fail)|iser.*(error|fail)|rejected|timed out|Call Trace|EXT4-fs error' |
		grep -v 'module verification failed' >/tmp/kernel.warnings
	seen=$all
	cat /tmp/kernel.warnings
	! [ -s /tmp/kernel.warnings ]
}

# Flags for our programs: with CRCs where this siw demands them, without where it asks for none.
case $VARIANT in
-crc) CRC= PEERCRC=true ;;
*) CRC=--crc=false PEERCRC=false ;;
esac

# listens PORT: whether somebody, the kernel itself included, listens on a TCP port.
listens() { grep -qi ":$(printf %04X $1) 00000000:0000 0A" /proc/net/tcp; }
not_listening() { ! listens $1; }

# lio_up: the kernel's target.
lio_up() {
	mkdir -p /etc/target
	modprobe -a target_core_mod target_core_file iscsi_target_mod ib_isert
	grep -q /sys/kernel/config /proc/mounts || mount -t configfs none /sys/kernel/config
	LIO=/sys/kernel/config/target
	mkdir -p $LIO/iscsi
	ip netns add lio
}
# lio_target NAME PORTAL iser|tcp [1 for write-protected]: a target with one LUN of 64 MiB in memory. LIO opens a TCP listener for
# every portal, and on iWARP the RDMA listener wants the same port. LIO makes the TCP one in the network namespace of whoever
# creates the portal and the RDMA one in the first namespace: so the portal is created inside an empty one.
lio_target() {
	local store=$LIO/core/rd_mcp_0/r${2##*:} t=$LIO/iscsi/$1/tpgt_1
	mkdir -p $store
	echo rd_pages=16384 >$store/control
	echo 1 >$store/enable
	mkdir -p $t/lun/lun_0
	ln -s $store $t/lun/lun_0/link
	for kv in authentication=0 generate_node_acls=1 demo_mode_write_protect=${4:-0} cache_dynamic_acls=1; do
		echo ${kv#*=} >$t/attrib/${kv%%=*}
	done
	if [ $3 = iser ]; then
		nsenter --net=/run/netns/lio mkdir $t/np/$2
		check "LIO opens an iSER portal" sh -c "echo 1 >$t/np/$2/iser" || finish
	else
		mkdir $t/np/$2
	fi
	echo 1 >$t/enable
}
