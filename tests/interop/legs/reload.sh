# What is served changes under fio, by SIGHUP and by iserd ctl: LUNs come, grow and go, mistakes change nothing, and no I/O fails.
. /host/lib.sh
siw_up
initiator_up
mkdir -p /disks
config() { # SIZE OF LUN 0, THEN MORE OF THE TARGET
	cat >/tmp/iserd.toml <<-END
		[[portal]]
		listen = "$IP:$PORT"
		[[target]]
		name = "$IQN"
		[[target.lun]]
		store = "/disks/a.img"
		size = "$1"
		$2
	END
}
config 16MiB
iserd_config
second='[[target.lun]]
store = "/disks/b.img"
size = "8MiB"'
mib() {
	local d=$(disk_name $1)
	[ -n "$d" ] && [ $(($(cat /sys/block/$d/size) / 2048)) = $2 ]
}
sees() { iscsiadm -m session --rescan >/dev/null && mib $1 $2; }

for transport in iser tcp; do
	iface=$transport
	[ $transport = tcp ] && iface=default
	node $iface >/dev/null
	must "$transport login" login
	disk=$(disk 0) || finish
	session=$(ls /sys/class/iscsi_session)
	size=$(($(cat /sys/block/${disk#/dev/}/size) / 2048))
	fio_start $disk
	must "$transport: fio writes and verifies" fio_goes_on

	config ${size}MiB "$second"
	kill -HUP $ISERD
	await 60 "$transport: the new LUN" sees 1 8 && pass "$transport: a LUN comes by SIGHUP"
	check "$transport: it can be written" dd if=/dev/zero of=/dev/$(disk_name 1) bs=1M count=8 oflag=direct
	size=$((size + 8))
	config ${size}MiB "$second"
	kill -HUP $ISERD
	await 60 "$transport: the LUN to grow" sees 0 $size && pass "$transport: the LUN under fio grows by SIGHUP"
	config ${size}MiB "$second
bad-key = 1"
	check "$transport: a reload of a file with a mistake is refused" sh -c "! iserd ctl --socket /tmp/iserd.sock reload 2>/tmp/mistake"
	check "$transport: and told with its line" grep 'iserd.toml:[0-9]*: .*bad-key' /tmp/mistake
	check "$transport: nothing has changed" sh -c "[ \$(iserd ctl --socket /tmp/iserd.sock luns --json | grep -o '/disks/[ab].img' | sort -u | wc -l) = 2 ]"
	size=$((size + 8))
	check "$transport: ctl lun resize" ctl lun resize 0 ${size}MiB
	await 60 "$transport: the LUN to grow by ctl" sees 0 $size && pass "$transport: the LUN under fio grows by ctl"
	config ${size}MiB
	echo 1 >/sys/block/$(disk_name 1)/device/delete
	check "$transport: a LUN goes by ctl reload" sh -c "iserd ctl --socket /tmp/iserd.sock reload && ! iserd ctl --socket /tmp/iserd.sock luns | grep b.img"
	check "$transport: fio goes on" fio_goes_on
	check "$transport: fio has lost nothing" fio_stop
	check "$transport: it was one session all the time" [ "$(ls /sys/class/iscsi_session)" = "$session" ]
	check "$transport logout" logout
	await 60 "the disks to go" no_disks
	check "$transport: the image has what fio wrote" fio_round /disks/a.img --verify_only --direct=0
	rm -f /disks/b.img
done
iserd_down
finish
