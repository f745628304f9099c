# libiscsi over siw (iser://) to iserd: its tools, and the read and write suites of its test program.
. /host/lib.sh
siw_up
iserd_up --lun mem:64MiB --log-level debug
url=iser://$IP:$PORT/$IQN/0
capture_start "" "tcp port $PORT"
check "iscsi-inq" sh -c "timeout 60 iscsi-inq $url | tee /dev/stderr | grep GOIWARP"
check "iscsi-readcapacity16" sh -c "timeout 60 iscsi-readcapacity16 $url | tee /dev/stderr | grep 'Total size:67108864'"
capture_stop
check "iscsi-perf" sh -c "timeout 60 iscsi-perf -m 8 -b 64 -t 3 $url | tr '\r' '\n' | tail -3 | tee /dev/stderr | grep -i iops"
cat /tmp/check.out
suites="SCSI.Read10 SCSI.Write10"
[ $FULL = 1 ] && suites="SCSI.Read6 SCSI.Read12 SCSI.Read16 SCSI.Write12 SCSI.Write16 SCSI.WriteVerify10 SCSI.CompareAndWrite SCSI.Unmap SCSI.WriteSame10 SCSI.WriteSame16 $suites"
for s in $suites; do
	check "iscsi-test-cu $s over TCP" sh -c "timeout 300 iscsi-test-cu -d -t $s iscsi://$IP:$PORT/$IQN/0"
	tail -n 40 /tmp/check.out
done
# Over iSER the test program's own start, a session with its commands, is served. Then libiscsi 1.19 crashes while it sets up
# its second connection in one process, before it sends anything on it.
timeout 60 iscsi-test-cu -d -t SCSI.Read10 $url >/tmp/testcu.out 2>&1
note "iscsi-test-cu over iSER ended with status $? ($(dmesg | grep -c 'iscsi-test-cu.*segfault') crash in $(dmesg | grep -o 'iscsi-test-cu.*segfault.* in [^[]*' | sed 's/.* in //' | tail -1))"
started() { grep 'session ended' /tmp/iserd.log | grep 'libiscsi:iscsi-test' | tail -1 | grep -E 'commands=[1-9]'; }
await 30 "iserd to see iscsi-test-cu go" started && pass "iscsi-test-cu's first session over iSER is served"
check "nothing of it was rejected" sh -c "! grep -E 'rejected|Terminate' /tmp/iserd.log"
check "the kernel has nothing to complain of" warnings
iserd_down
finish
