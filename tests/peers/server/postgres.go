package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Postgres is a cluster with the default settings of initdb. The first sample creates it. Each sample starts a server
// on this cluster and creates a new database. If each sample had its own cluster, removing the cluster's thousand
// files would slow down the next measurement.
type Postgres struct {
	dir       string // folder of the cluster
	databases int
}

// Start implements Start.
func (p *Postgres) Start(ctx context.Context, dir string) (Running, error) {
	as, err := unprivileged()
	if err != nil {
		return Running{}, err
	}
	if p.dir == "" {
		if err := p.init(ctx, filepath.Join(filepath.Dir(dir), "postgres"), as); err != nil {
			return Running{}, err
		}
	}
	ports, err := freePorts(1)
	if err != nil {
		return Running{}, err
	}
	program, err := PostgresProgram(ctx, "postgres")
	if err != nil {
		return Running{}, err
	}
	server, err := run(p.dir, as, program, "-D", filepath.Join(p.dir, "data"), "-p", strconv.Itoa(ports[0]),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	if err != nil {
		return Running{}, err
	}
	p.databases++
	base := fmt.Sprintf("postgresql://postgres:none@127.0.0.1:%d/", ports[0])
	name := fmt.Sprintf("sample%d", p.databases)
	err = server.await(ctx, func(ctx context.Context) error { return createDatabase(ctx, base+"postgres", name) })
	if err != nil {
		return Running{}, err
	}
	return Running{Address: base + name, Stop: func() error { return server.stop(syscall.SIGINT) }}, nil
}

func (p *Postgres) init(ctx context.Context, dir string, as *syscall.Credential) error {
	program, err := PostgresProgram(ctx, "initdb")
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user
		return err
	}
	if as != nil {
		if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, program, "-D", filepath.Join(dir, "data"), "-U", "postgres", "--auth=trust", "-E", "UTF8")
	cmd.Dir, cmd.SysProcAttr = dir, ChildOf(as)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	p.dir = dir
	return nil
}

func createDatabase(ctx context.Context, url, name string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "create database "+name)
	return err
}

// PostgresProgram returns the path of a PostgreSQL program. On Debian, server programs are not in
// PATH.
func PostgresProgram(ctx context.Context, name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	if err == nil {
		if path := filepath.Join(strings.TrimSpace(string(out)), name); exists(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed, or not in PATH", name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// unprivileged returns the user that runs PostgreSQL, because PostgreSQL refuses to run as root. It returns nil for
// the current user.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil means the current user: see above
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root: create a user postgres, or run as another user")
}
