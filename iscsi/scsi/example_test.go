package scsi_test

import (
	"context"
	"errors"
	"fmt"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// A disk of 1 MiB in memory that is asked for more than it has.
func Example() {
	mem, err := store.NewMemory(1 << 20)
	if err != nil {
		panic(err)
	}
	defer mem.Close()
	lu, err := scsi.NewLU(mem, scsi.LUConfig{})
	if err != nil {
		panic(err)
	}
	disk := scsi.NewDevice(scsi.Port{})
	if err := disk.Add(0, lu); err != nil {
		panic(err)
	}
	nexus := disk.NewNexus("me")
	defer nexus.Close()
	for range 2 {
		cdb := scsi.Read(2048, 1, 0)
		r := disk.Execute(context.Background(), nexus, scsi.EncodeLUN(0), cdb[:], nil)
		fmt.Println(scsi.NewError(cdb[:], r.Status, r.Sense()))
	}
	// Output:
	// scsi: READ(10): UNIT ATTENTION: power on, reset, or bus device reset occurred (29/00)
	// scsi: READ(10): ILLEGAL REQUEST: logical block address out of range (21/00)
}

func ExampleError_Is() {
	sense := scsi.Sense{Key: scsi.KeyDataProtect, Code: scsi.CodeSpaceAllocationFailed}
	err := scsi.NewError(nil, scsi.StatusCheckCondition, sense.AppendFixed(nil))
	fmt.Println(errors.Is(err, scsi.CodeSpaceAllocationFailed.Err()))
	// Output: true
}

func ExampleRead() {
	small, large := scsi.Read(7, 8, scsi.FUA), scsi.Read(1<<32, 8, 0)
	fmt.Printf("%x\n%x\n", small.Bytes(), large.Bytes())
	// Output:
	// 28080000000700000800
	// 88000000000100000000000000080000
}
