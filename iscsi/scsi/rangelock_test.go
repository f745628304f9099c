package scsi

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

func TestRangeLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rangeLock
		var mu sync.Mutex // guards order
		var order []string
		ctx := context.Background()
		take := func(ctx context.Context, name string, s span) {
			go func() {
				if err := r.lock(ctx, s); err != nil {
					name += " gave up"
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
			}()
			synctest.Wait()
		}
		check := func(want ...string) {
			t.Helper()
			synctest.Wait()
			assert.Equal(t, want, order)
			order = nil
		}
		shared := span{lba: 0, end: 10}
		exclusive := span{lba: 5, end: 15, exclusive: true}
		take(ctx, "shared", shared)
		take(ctx, "overlapping shared", shared)
		check("shared", "overlapping shared")
		giveUp, cancel := context.WithCancel(ctx)
		take(giveUp, "exclusive", exclusive)
		take(ctx, "behind", span{lba: 12, end: 13})
		take(ctx, "elsewhere", span{lba: 20, end: 30, exclusive: true})
		check("elsewhere")
		cancel()
		synctest.Wait()
		assert.ElementsMatch(t, []string{"exclusive gave up", "behind"}, order)
		order = nil
		r.unlock(span{lba: 12, end: 13})
		take(ctx, "exclusive", exclusive)
		take(ctx, "behind", shared)
		r.unlock(shared)
		check()
		r.unlock(shared)
		check("exclusive")
		r.unlock(exclusive)
		check("behind")
		r.unlock(shared)
		r.unlock(span{lba: 20, end: 30, exclusive: true})
		assert.Empty(t, r.held)
		assert.Empty(t, r.waiting)
	})
}
