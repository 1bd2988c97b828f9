package api

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestSharedComputesOnceForAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shared[string, int]
		var calls atomic.Int32
		release := make(chan struct{})
		compute := func(context.Context) (int, error) { //nolint:unparam // shared.do requires this signature
			calls.Add(1)
			<-release
			return 7, nil
		}
		results := make(chan int, 3)
		for range 3 {
			go func() {
				got, err := s.do(t.Context(), "a", compute)
				if err == nil {
					results <- got
				}
			}()
		}
		synctest.Wait()
		got, err := s.do(t.Context(), "b", func(context.Context) (int, error) { return 8, nil })
		require.NoError(t, err)
		require.Equal(t, 8, got, "another key does not wait")
		close(release)
		for range 3 {
			require.Equal(t, 7, <-results)
		}
		require.EqualValues(t, 1, calls.Load())
		require.Empty(t, s.running)
	})
}

func TestSharedCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shared[string, int]
		release, ended := make(chan struct{}), make(chan struct{})
		compute := func(ctx context.Context) (int, error) {
			select {
			case <-release:
				return 7, nil
			case <-ctx.Done():
				close(ended)
				return 0, ctx.Err()
			}
		}
		first, leave := context.WithCancel(t.Context())
		second, leaveToo := context.WithCancel(t.Context())
		failed := make(chan error, 2)
		for _, ctx := range []context.Context{first, second} {
			go func() {
				_, err := s.do(ctx, "a", compute)
				failed <- err
			}()
		}
		synctest.Wait()
		leave() // the caller that began the computation leaves
		require.ErrorIs(t, <-failed, context.Canceled)
		synctest.Wait()
		require.Len(t, s.running, 1, "the other caller still waits")
		leaveToo()
		require.ErrorIs(t, <-failed, context.Canceled)
		<-ended
		close(release)
		got, err := s.do(t.Context(), "a", func(context.Context) (int, error) { return 8, nil })
		require.NoError(t, err)
		require.Equal(t, 8, got)
		require.PanicsWithValue(t, "bug", func() {
			_, _ = s.do(t.Context(), "a", func(context.Context) (int, error) { panic("bug") })
		})
	})
}
