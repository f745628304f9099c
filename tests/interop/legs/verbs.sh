# The hardware provider (rnic/verbs) on the kernel's devices in software: its tests, on siw, on rxe and beside our device in
# software; the programs with --rnic verbs against the kernel; links added and deleted, one of them under load.
. /host/lib.sh
siw_up
modprobe -a rdma_rxe crc32_generic
OTHER=10.9.1.1 # a second interface, whose devices come and go
ip link add dummy1 type dummy
ip addr add $OTHER/24 dev dummy1
ip link set dummy1 mtu 1500 up
mkdir -p /disks
dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null

# suite DEVICE ADDRESS TESTS NAME: the provider's tests that match. What a device cannot do is skipped with its reason, in the
# output, which is kept. A test that fails is run once more by itself: siw and rxe lose a connection now and then when the
# guest is short of time.
suite() {
	local out="/host/$1-${4// /-}.txt" again
	VERBS_DEVICE=$1 VERBS_ADDR=$2:0 timeout 600 verbs.test -test.v -test.timeout 9m -test.run "$3" >"$out" 2>&1
	local status=$?
	if [ $status = 1 ] && again=$(failed <"$out") && [ -n "$again" ] && [ $(wc -l <<<"$again") -le 3 ]; then
		status=0
		for t in $again; do
			note "$4 on $1: once more: $t"
			VERBS_DEVICE=$1 VERBS_ADDR=$2:0 timeout 200 verbs.test -test.v -test.timeout 3m -test.run "^${t//\//\$/^}\$" >>"$out" 2>&1 || status=1
		done
	fi
	check "$4 on $1: $(grep -c '^ *--- PASS' "$out") passed, $(grep -c '^ *--- SKIP' "$out") with nothing to test" [ $status = 0 ] || grep -E -A12 '^panic|^ *--- FAIL|Error:' "$out" | head -80
}
# failed: the innermost tests that failed.
failed() { awk '/^ *--- FAIL: / { n[++k] = $3 } END { for (i = 1; i <= k; i++) { leaf = 1; for (j = 1; j <= k; j++) if (index(n[j], n[i] "/") == 1) leaf = 0; if (leaf) print n[i] } }'; }

suite siw0 $IP '^(TestConformance|TestOpenMistakes|TestSendInvalidate|TestAllocs|TestAddress)$' "the verbs' conformance"
suite siw0 $IP '^TestBesideSoft$' "conformance beside soft, both ways"
suite siw0 $IP '^TestDatamover$' "iSER's suite, also beside soft"

# The programs' own view, and links.
check "links shows siw0 and what it can do" sh -c "iwarp links | tee /dev/stderr >/tmp/links; grep -E '^siw0 +siw +ACTIVE +dummy0' /tmp/links && grep '^siw0 reports: .*Read sinks need remote write' /tmp/links && grep '^rxe: available' /tmp/links"
cat /tmp/check.out
check "links add rxe0" iwarp links add rxe0 --type rxe --netdev dummy1
check "links shows rxe0" sh -c "iwarp links | tee /dev/stderr | grep -E '^rxe0 +rxe +ACTIVE +dummy1'"
suite rxe0 $OTHER '^(TestConformance|TestAllocs)$' "the verbs' conformance"
[ $FULL = 1 ] && suite rxe0 $OTHER '^TestDatamover$' "iSER's suite"
iwarp rping --rnic verbs:rxe0 -s -a $OTHER -P >/tmp/rping.rxe 2>&1 &
await 60 "iwarp rping over rxe0" grep -q ready /tmp/rping.rxe && check "100 verified pings over rxe0" timeout 120 iwarp rping --rnic verbs:rxe0 -c -a $OTHER -C 100 -S 4096 -V
kill $!
wait $!
check "links del rxe0" iwarp links del rxe0
check "rxe0 is gone" sh -c "! iwarp links | grep '^rxe0'"
check "a link that is not there: one line" sh -c "! iwarp links del rxe0 2>/tmp/err; cat /tmp/err; [ \$(wc -l </tmp/err) = 1 ] && grep rxe0 /tmp/err"

# iserd on siw0 serves the kernel's initiator, and TCP beside it.
check "a port for both is one clear line" sh -c "! timeout 60 iserd --log-level error --rnic verbs:siw0 --lun mem:8MiB --listen $IP:$PORT --listen-rdma $IP:$PORT 2>/tmp/err; cat /tmp/err; [ \$(wc -l </tmp/err) = 1 ] && grep -- '--listen-rdma $IP:$PORT' /tmp/err"
cat /tmp/check.out
# Newer kernels hold whoever may lock memory (CAP_IPC_LOCK) to no limit.
check "too little memory to lock is one clear line" sh -c "ulimit -l 64; ! timeout 60 setpriv --bounding-set=-ipc_lock iserd --log-level error --rnic verbs:siw0 --lun mem:8MiB --listen $IP:$PORT --listen-rdma $IP:3261 2>/tmp/err; cat /tmp/err; [ \$(wc -l </tmp/err) = 1 ] && grep 'ulimit -l' /tmp/err"
cat /tmp/check.out
CRC=
iserd_up --lun /disks/a.img,size=64MiB --rnic verbs:siw0 --listen-rdma $IP:3261
initiator_up
io() { # DEVICE KIB N
	dd if=/tmp/random of=$1 bs=${2}k count=$3 oflag=direct conv=notrunc 2>/tmp/dd.out || { cat /tmp/dd.out; return 1; }
	dd if=$1 bs=${2}k count=$3 iflag=direct 2>/dev/null | cmp -n $(($3 * $2 << 10)) - /tmp/random
}
capture_start verbs "tcp port 3261"
check "the kernel discovers iserd on siw0" sh -c "iscsiadm -m discovery -t st -p $IP:3261 -I iser | grep '$IP:3261,1 $IQN'"
iscsiadm -m node -o delete >/dev/null 2>&1
iscsiadm -m node -T $IQN -p $IP:3261,1 -I iser -o new >/dev/null
if check "the kernel logs in to iserd on siw0" timeout 90 iscsiadm -m node -T $IQN -p $IP:3261,1 --login; then
	disk=$(disk 0) || finish
	check "512 KiB I/Os" io $disk 512 8
	check "4 KiB I/Os" io $disk 4 64
	capture_stop
	check "mkfs.ext4, files, fsck" sh -c "mkfs.ext4 -q -F $disk && mount -t ext4 $disk /mnt && cp \$(find /usr/bin -type f -name '[a-f]*') /mnt/ &&
		(cd /usr/bin && find . -type f -name '[a-f]*' | xargs sha256sum) >/tmp/sums && umount /mnt && e2fsck -fn $disk &&
		mount -t ext4 -o ro $disk /mnt && (cd /mnt && sha256sum --quiet -c /tmp/sums) && umount /mnt"
	check "logout" timeout 90 iscsiadm -m node -T $IQN -p $IP:3261,1 --logout
	await 60 "the disks to go" no_disks
fi
capture_stop
check "the same disk over TCP" sh -c "iser read iscsi://$IP:$PORT/$IQN/0 | cmp - /disks/a.img"
iserd_down
check "the kernel has nothing to complain of" warnings

# iser on siw0 drives LIO.
lio_up
lio_target $IQN-lio $IP:3262 iser
check "iser on siw0 discovers LIO" sh -c "iser --rnic verbs:siw0 discover --iser $IP:3262 | grep '$IP:3262,1 $IQN-lio\$'"
check "iser on siw0: 8 MiB to LIO, read back and compared" timeout 120 iser --rnic verbs:siw0 cp --verify /tmp/random iser://$IP:3262/$IQN-lio/0
check "the kernel has nothing to complain of" warnings

# Removal: of a device with an idle connection (the test), and of one under load.
check "links add siw1" iwarp links add siw1 --type siw --netdev dummy1
suite siw1 $OTHER '^TestRemoval$' "removal with a connection"
iserd --rnic verbs:siw1 --lun mem:64MiB --target $IQN --listen $OTHER:$PORT --listen-rdma $OTHER:3261 --log-level info >/tmp/removed.ready 2>/tmp/removed.log &
ISERD=$!
await 60 "iserd on siw1" grep -q "^ready.*3261" /tmp/removed.ready || finish
(while iser cp --replacement-timeout 5s --verify /tmp/random iser://$OTHER:3261/$IQN/0 >/tmp/load.out 2>/tmp/load.err; do echo round >>/tmp/load.rounds; done) &
LOAD=$!
await 120 "load on siw1" [ -s /tmp/load.rounds ]
start=$(date +%s%N)
check "links del siw1 under load returns within 20 s" timeout 20 iwarp links del siw1
note "siw1 was removed under load within $((($(date +%s%N) - start) / 1000000)) ms"
over() { ! kill -0 $1 2>/dev/null; }
await 60 "the load's end" over $LOAD && check "the initiator says so in one line" sh -c "cat /tmp/load.err; [ \$(wc -l </tmp/load.err) = 1 ]"
cat /tmp/check.out
await 60 "iserd to end without its device" over $ISERD
wait $ISERD
check "iserd ends with an error that names the cause (status $?)" sh -c "tail -1 /tmp/removed.log | tee /dev/stderr | grep -i -E 'remov|gone'"
cat /tmp/check.out
check "siw0 works on" timeout 60 sh -c "iser --rnic verbs:siw0 ls iser://$IP:3262/$IQN-lio"
check "the kernel has nothing to complain of" warnings
finish
