package localqueue_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
)

func TestPrepareIsCalledForEachDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies []string
		q := run(t, localqueue.Options{
			Logger: slog.New(slog.DiscardHandler), MinBackoff: time.Second,
			Client: client(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if bodies = append(bodies, string(body)); len(bodies) == 1 {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}),
		})
		asked := 0
		item := task("a")
		item.Prepare = func(context.Context) ([]byte, bool, error) {
			asked++
			return []byte{byte('0' + asked)}, true, nil
		}
		create(t, q, item)
		pass(t, time.Minute)
		require.Equal(t, []string{"1", "2"}, bodies, "prepared again for each delivery")
	})
}

func TestAnsweredErrorFailsDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delivered := 0
		q := run(t, localqueue.Options{
			Logger: slog.New(slog.DiscardHandler), MinBackoff: time.Second,
			Client: client(func(w http.ResponseWriter, _ *http.Request) {
				delivered++
				size := 1
				switch delivered {
				case 1:
					w.WriteHeader(http.StatusInternalServerError)
				case 2: // larger than an answer may be
					size = 64<<10 + 1
				}
				_, _ = w.Write(bytes.Repeat([]byte{byte('0' + delivered)}, size))
			}),
		})
		var answers []string
		item := task("a")
		item.OnResponse = func(_ context.Context, body []byte) error {
			if answers = append(answers, string(body)); len(answers) == 1 {
				return errors.New("unavailable")
			}
			return nil
		}
		create(t, q, item)
		pass(t, time.Minute)
		require.Equal(t, []string{"3", "4"}, answers, "only answers of 200, until one is accepted")
	})
}

func TestPrepareErrorRetriesAndUnwantedEndsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := run(t, localqueue.Options{
			Logger: slog.New(slog.DiscardHandler), MinBackoff: time.Second,
			Client: client(func(http.ResponseWriter, *http.Request) { t.Error("unexpected delivery") }),
		})
		asked := 0
		item := task("a")
		item.Prepare = func(context.Context) ([]byte, bool, error) {
			if asked++; asked == 1 {
				return nil, false, errors.New("unavailable")
			}
			return nil, false, nil
		}
		create(t, q, item)
		pass(t, time.Minute)
		require.Equal(t, 2, asked)
		exists, err := q.Exists(t.Context(), item.Queue, item.Name)
		require.NoError(t, err)
		require.False(t, exists)
	})
}
