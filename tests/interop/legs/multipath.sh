# dm-multipath over two portals of iserd, each a portal group with its access state: multipathd and udevd fail over and back while
# fio writes and verifies, over both transports.
. /host/lib.sh
siw_up
IP2=10.9.1.1
ip addr add $IP2/24 dev dummy0
# An address can be cut off like a cable: the rule for local addresses comes after those that drop packets.
ip rule add pref 100 table local
ip rule del pref 0
cut_off() { ip rule add pref 1 to $1 blackhole && ip rule add pref 1 from $1 blackhole; }
join() { ip rule del pref 1 && ip rule del pref 1; }

initiator_up
modprobe -a dm_multipath dm_round_robin dm_service_time scsi_dh_alua
# By its own default the kernel asks by SET TARGET PORT GROUPS for whatever path it uses to be the optimized one, the first that it sees
# too. Here it is to take paths as they are.
echo 1 >/sys/module/scsi_dh_alua/parameters/optimize_stpg
mkdir -p /disks /etc/multipath /run/udev
for g in audio cdrom dialout disk input kmem kvm lp render sgx tape tty video; do echo "$g:x:6:" >>/etc/group; done
/lib/systemd/systemd-udevd --daemon 2>/tmp/udevd.log
udevadm trigger --action=add && udevadm settle -t 120
cat >/etc/multipath.conf <<END
defaults {
	find_multipaths no
	user_friendly_names no
	polling_interval 1
	max_polling_interval 2
	path_grouping_policy group_by_prio
	path_checker tur
	prio alua
	failback immediate
	no_path_retry 60
}
blacklist {
	devnode "^(vd|loop|ram|dm-)"
}
END
multipathd -d -s -v2 >/tmp/multipathd.log 2>&1 &
await 60 multipathd multipathd show daemon
cat >/tmp/iserd.toml <<END
[[portal]]
listen = "$IP:$PORT"
group = 1
[[portal]]
listen = "$IP2:$PORT"
group = 2
[[target]]
name = "$IQN"
alua = [{group = 2, state = "active/non-optimized"}]
[[target.lun]]
store = "/disks/a.img"
size = "32MiB"
END
iserd_config

paths() { # HOW MANY ACTIVE, HOW MANY NOT
	multipathd show paths raw format "%d %t %T" >/tmp/paths
	[ $(grep -c 'active ready' /tmp/paths) = $1 ] && [ $(wc -l </tmp/paths) = $(($1 + $2)) ]
}
map() { dmsetup ls --target multipath | awk 'NR == 1 && $1 != "No" { print $1 }'; }
mapped() { [ -n "$(map)" ] && [ -b /dev/mapper/$(map) ] && paths 2 0; }
# in_use PRIO: the group in use has paths of this priority only: 50 is active/optimized, 10 is not.
in_use() { multipath -ll | grep -q "prio=$1 status=active"; }
not_in_use() { ! in_use $1; }
# state GROUP STATE: what iserd says of a group, whoever has changed it.
state() { ctl alua | grep -E "[[:space:]]$1[[:space:]].*[[:space:]]$2([[:space:]]|\$)"; }
none_in_use() { multipath -ll >/tmp/ll && grep -q 'policy=' /tmp/ll && ! grep -q "prio=$1" /tmp/ll; }
flushed() { multipath -F && [ -z "$(map)" ]; }
rounds=1
[ $FULL = 1 ] && rounds=2

for transport in iser tcp; do
	iface=$transport
	[ $transport = tcp ] && iface=default
	iscsiadm -m node -o delete >/dev/null 2>&1
	check "$transport: discovery tells both portals" sh -c "iscsiadm -m discovery -t st -p $IP:$PORT -I $iface >/tmp/found; grep '$IP:$PORT,1 $IQN' /tmp/found && grep '$IP2:$PORT,2 $IQN' /tmp/found"
	set_node node.session.timeo.replacement_timeout 5
	set_node node.conn[0].timeo.noop_out_interval 3
	set_node node.conn[0].timeo.noop_out_timeout 5
	must "$transport: login by both" timeout 120 iscsiadm -m node -T $IQN --login
	await 90 "$transport: a map with two paths" mapped || { multipath -ll; finish; }
	disk=/dev/mapper/$(map)
	check "$transport: udev made the map's links" sh -c "udevadm settle -t 60; ls -l /dev/disk/by-id/dm-uuid-mpath-$(map)"
	check "$transport: the optimized path is in use" in_use 50
	multipath -ll
	fio_start $disk
	must "$transport: fio writes and verifies" fio_goes_on
	for i in $(seq $rounds); do
		cut_off $IP
		await 120 "$transport: the path to fail" paths 1 1 && pass "$transport: the path that was pulled fails"
		check "$transport: fio goes on by the other" fio_goes_on
		check "$transport: the optimized path is not in use" not_in_use 50
		join
		await 180 "$transport: the path to come back" paths 2 0 && pass "$transport: it is reinstated"
		await 60 "$transport: failback" in_use 50 && pass "$transport: and in use again"
		check "$transport: fio goes on" fio_goes_on
		cut_off $IP2
		await 120 "$transport: the other path to fail" paths 1 1 && pass "$transport: the other path fails"
		check "$transport: fio does not care" fio_goes_on
		join
		await 180 "$transport: the other path to come back" paths 2 0 && pass "$transport: and is reinstated"
	done
	check "$transport: group 1 goes to standby by ctl" ctl alua set 1 standby
	await 60 "$transport: multipathd to see it" in_use 10 && pass "$transport: the other group is used"
	check "$transport: fio goes on" fio_goes_on
	check "$transport: group 1 comes back by ctl" ctl alua set 1 active/optimized
	await 60 "$transport: multipathd to see it" in_use 50 && pass "$transport: it is used again"
	check "$transport: fio goes on" fio_goes_on
	check "$transport: an initiator has both groups optimized by SET TARGET PORT GROUPS" sg_stpg --tp=1,2 --state=ao,ao /dev/$(disk_name 0)
	check "$transport: iserd says so" state 2 active/optimized
	await 60 "$transport: multipathd to see it" none_in_use 10 && pass "$transport: one group has both paths"
	check "$transport: fio goes on" fio_goes_on
	check "$transport: group 2 is as before by ctl" ctl alua set 2 active/non-optimized
	check "$transport: fio has lost nothing" fio_stop
	check "$transport: the map gave no error" sh -c "! dmesg | grep 'error.*dm-'"
	await 60 "the map to go" flushed && pass "$transport: the map goes" # udev may be looking at it
	check "$transport: logout" timeout 120 iscsiadm -m node -T $IQN --logout
	await 60 "the disks to go" no_disks
	check "$transport: the image has what fio wrote" fio_round /disks/a.img --verify_only --direct=0
done
iserd_down
finish
