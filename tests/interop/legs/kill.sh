# iserd killed (-9) and started again under writers that fsync: the kernel's session recovers, and all is there.
. /host/lib.sh
siw_up
mkdir -p /disks
iserd_up --lun /disks/a.img,size=64MiB
initiator_up
rounds=150
[ $FULL = 1 ] && rounds=400
acked() { [ $(wc -l </tmp/acks) -ge $1 ]; }
for transport in iser tcp; do
	iface=$transport
	[ $transport = tcp ] && iface=default
	capture_start $transport "tcp port $PORT"
	node $iface >/dev/null
	set_node node.conn[0].timeo.noop_out_interval 5
	set_node node.conn[0].timeo.noop_out_timeout 5
	must "$transport login" login
	disk=$(disk 0) || finish
	: >/tmp/acks
	peer write $disk /tmp/acks $rounds >/tmp/writer.log 2>&1 &
	writer=$!
	for kills in 1 2; do
		await 120 "$transport: writes under way" acked $((kills * rounds)) || break
		kill -9 $ISERD
		wait $ISERD 2>/dev/null
		before=$(wc -l </tmp/acks)
		iserd_up --lun /disks/a.img
		await 120 "$transport: the session to recover from kill $kills" acked $((before + 20)) && pass "$transport: the session recovers from kill $kills"
	done
	wait $writer
	check "$transport: no writer saw an error" [ $? = 0 ]
	cat /tmp/writer.log
	check "$transport: each acknowledged write is on the disk" sh -c "echo 3 >/proc/sys/vm/drop_caches; peer verify $disk /tmp/acks"
	check "$transport: the session is logged in" sh -c "iscsiadm -m session -P 1 | grep 'Session State: LOGGED_IN'"
	check "$transport logout" logout
	capture_stop
	await 60 "the disks to go" no_disks
	check "$transport: each acknowledged write is in the image" peer verify /disks/a.img /tmp/acks
	cat /tmp/check.out
done
iserd_down
finish
