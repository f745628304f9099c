# The kernel's initiator to iserd beside the same to LIO, in one guest: 256 KiB sequential and 4 KiB random, read and write. What
# counts are the ratios: emulation makes the figures themselves meaningless. Best of three, in turns.
. /host/lib.sh
siw_up
lio_up
lio_target $IQN-lio $IP:3262 iser
lio_target $IQN-liotcp $IP:3263 tcp
iserd_up --lun mem:64MiB
initiator_up
iscsiadm -m node -T $IQN -p $IP:$PORT,1 -I iser -o new >/dev/null
iscsiadm -m node -T $IQN-lio -p $IP:3262,1 -I iser -o new >/dev/null

# rate KIND DISK: MB/s (sequential) or I/Os per second (random), of 32 MiB or 1000 I/Os with four in flight.
rate() {
	case $1 in
	"sequential write") dd if=/dev/zero of=$2 bs=256k count=128 oflag=direct 2>&1 | rate_of 32 ;;
	"sequential read") dd if=$2 of=/dev/null bs=256k count=128 iflag=direct 2>&1 | rate_of 32 ;;
	"random write") peer io $2 write 1000 ;;
	"random read") peer io $2 read 1000 ;;
	esac
}
rate_of() { awk -v n=$1 '/copied/ { for (i = 1; i <= NF; i++) if ($i == "s,") printf "%.1f", n * 1.048576 / $(i - 1) }'; }
compare() { # NAME OURS THEIRS
	local kind a b i
	# A little of everything for tshark first, since a capture of all would slow down what is measured.
	capture_start ${1,,} "tcp port $PORT or tcp port 3262 or tcp port 3263"
	for i in $2 $3; do
		dd if=/dev/urandom of=$i bs=256k count=8 oflag=direct 2>/dev/null
		dd if=$i of=/dev/null bs=256k count=8 iflag=direct 2>/dev/null
		peer io $i write 100 >/dev/null
		peer io $i read 100 >/dev/null
	done
	capture_stop
	for kind in "sequential write" "sequential read" "random write" "random read"; do
		a=0 b=0
		for i in 1 2 3; do
			a="$a $(rate "$kind" $2)"
			b="$b $(rate "$kind" $3)"
		done
		note "$1 $kind: $(echo "$a/$b" | awk -F/ '{ n = split($1, x, " "); m = split($2, y, " "); for (i in x) if (x[i] > p) p = x[i] + 0; for (i in y) if (y[i] > q) q = y[i] + 0; printf "iserd %s, LIO %s, ratio %.2f", p, q, p / q }')"
	done
	pass "$1 measured"
}
must "iser login to iserd" login
ours=$(disk 0) || finish
must "iser login to LIO" timeout 90 iscsiadm -m node -T $IQN-lio -p $IP:3262,1 --login
two() { [ $(ls -d /sys/block/sd* | wc -l) = 2 ]; }
await 60 "LIO's disk" two || finish
compare iSER $ours /dev/$(ls /sys/block | grep '^sd' | grep -v ${ours#/dev/})
timeout 90 iscsiadm -m node --logoutall=all
await 60 "the disks to go" no_disks
iscsiadm -m node -o delete
iscsiadm -m node -T $IQN -p $IP:$PORT,1 -I default -o new >/dev/null
iscsiadm -m node -T $IQN-liotcp -p $IP:3263,1 -I default -o new >/dev/null
must "tcp login to iserd" login
ours=$(disk 0) || finish
must "tcp login to LIO" timeout 90 iscsiadm -m node -T $IQN-liotcp -p $IP:3263,1 --login
await 60 "LIO's disk" two || finish
compare TCP $ours /dev/$(ls /sys/block | grep '^sd' | grep -v ${ours#/dev/})
timeout 90 iscsiadm -m node --logoutall=all
await 60 "the disks to go" no_disks
iserd_down
finish
