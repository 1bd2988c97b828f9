package usage_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"testing/fstest"
	"time"

	"github.com/servo-orchestration/servo/tests/peers/usage"
)

// table is a fake /proc.
type table fstest.MapFS

func (t table) add(pid, parent int, name, state string, ticks [4]int, kib int) {
	t.put(pid, "stat", fmt.Sprintf("%d (%s) %s %d 0 0 0 -1 4194304 1 2 3 4 %d %d %d %d 20 0 1 0 99 0\n",
		pid, name, state, parent, ticks[0], ticks[1], ticks[2], ticks[3]))
	if kib > 0 {
		t.put(pid, "smaps_rollup", fmt.Sprintf("00400000-7fff [rollup]\nRss:   99999 kB\nPss:   %d kB\nPss_Dirty: 1 kB\n", kib))
	}
}

func (t table) put(pid int, file, text string) {
	t[strconv.Itoa(pid)+"/"+file] = &fstest.MapFile{Data: []byte(text)}
}

func TestBelowCountsAllDescendants(t *testing.T) {
	proc := table{"uptime": {Data: []byte("1 2\n")}}
	proc.add(1, 0, "init", "S", [4]int{9000, 9000, 9000, 9000}, 9000)
	proc.add(10, 1, "peers", "R", [4]int{500, 500, 500, 500}, 5000)
	proc.add(30, 10, "postgres", "S", [4]int{1, 2, 30, 40}, 100)
	proc.add(20, 10, "a) worker (b", "S", [4]int{100, 0, 0, 0}, 20)
	proc.add(5, 30, "postgres", "S", [4]int{0, 5, 0, 0}, 3) // the pid of its parent is higher
	proc.add(31, 30, "postgres", "Z", [4]int{7, 0, 0, 0}, 0)
	proc.add(32, 10, "node", "Z", [4]int{15, 0, 0, 0}, 0)
	proc.add(40, 1, "postgres", "S", [4]int{77, 0, 0, 0}, 77)

	u, err := usage.Below(fstest.MapFS(proc), 10)
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(123 << 10); u.PSS != want {
		t.Errorf("PSS %d, not %d", u.PSS, want)
	}
	if want := 2000 * time.Millisecond; u.CPU != want {
		t.Errorf("CPU %s, not %s: ended children count", u.CPU, want)
	}
	if want := []int{20, 30}; !slices.Equal(u.Children, want) {
		t.Errorf("children %v, not %v", u.Children, want)
	}
	if got, want := u.Programs["postgres"], (usage.Part{Processes: 2, PSS: 103 << 10}); got != want {
		t.Errorf("postgres %+v, not %+v", got, want)
	}
	if got, want := u.Programs["a) worker (b"], (usage.Part{Processes: 1, PSS: 20 << 10}); got != want {
		t.Errorf("worker %+v, not %+v", got, want)
	}
}

func TestBelowFailsWithoutMemory(t *testing.T) {
	proc := table{}
	proc.add(20, 10, "other", "S", [4]int{}, 0)
	if u, err := usage.Below(fstest.MapFS(proc), 10); err == nil {
		t.Errorf("without a file: %+v", u)
	}
	proc.put(20, "smaps_rollup", "Rss: 5 kB\n")
	if u, err := usage.Below(fstest.MapFS(proc), 10); err == nil {
		t.Errorf("without the line: %+v", u)
	}
	proc.put(20, "stat", "20 (other) S 10\n")
	if u, err := usage.Below(fstest.MapFS(proc), 10); err == nil {
		t.Errorf("half a line of the table: %+v", u)
	}
}

func TestBelowMeasuresThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	u, err := usage.Below(os.DirFS("/proc"), os.Getppid())
	if err != nil {
		t.Skip(err) // the file may belong to a process of another user
	}
	if !slices.Contains(u.Children, os.Getpid()) || u.PSS == 0 {
		t.Errorf("%+v", u)
	}
}
