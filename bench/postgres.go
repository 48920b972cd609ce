package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// storeConnections is how many connections Redis and PostgreSQL are asked on,
	// as many as there are callers where aims are set.
	storeConnections = aimCallers
	// postgresUser is whom Debian's package makes for it: postgres refuses to run
	// as root.
	postgresUser = "postgres"
)

// postgres is a PostgreSQL server of the bench's own, with nothing in it that it
// did not put there.
type postgres struct {
	*process
	pool   *pgxpool.Pool
	filled bool // the long conversation
}

func (m *mesh) openPostgres() (*postgres, error) {
	if m.postgres != nil {
		return m.postgres, nil
	}
	server, err := startPostgres(m.ctx, filepath.Join(m.dir, "postgres"), m.synced)
	if err != nil {
		return nil, err
	}
	m.postgres = &postgres{process: server}
	if m.postgres.pool, err = pgxpool.New(m.ctx, server.url); err != nil {
		return nil, err
	}
	m.closers = append(m.closers, m.postgres.pool.Close)
	err = eventually(m.ctx, "postgres answers", func() bool { return m.postgres.pool.Ping(m.ctx) == nil })
	if err != nil {
		return nil, errors.Join(err, m.postgres.logged())
	}
	_, err = m.postgres.pool.Exec(m.ctx, postgresTables)
	return m.postgres, err
}

// logged is the end of the server's log, for when it did not start.
func (p *postgres) logged() error {
	const end = 1000
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	return errors.New(string(text[max(0, len(text)-end):]))
}

// startPostgres starts a server on a free port of loopback, with a data folder
// that it makes.
//
// Both ways it survives a crash unharmed. Where writes are not synced, the last
// ones may be lost, as those of JetStream and Redis are then.
func startPostgres(ctx context.Context, dir string, sync bool) (*process, error) {
	initdb, err := postgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	program, err := postgresProgram("postgres")
	if err != nil {
		return nil, err
	}
	owned, err := postgresFolder(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	prepare := exec.CommandContext(ctx, initdb, "--pgdata", data, "--username", "bench", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync")
	owned(prepare)
	if answer, err := prepare.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, answer)
	}

	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "postgres.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	settings := []string{
		"-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", "",
		// The defaults are for a machine that it shares with much else.
		"-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB",
		"-c", "synchronous_commit=" + onOff(sync),
	}
	cmd := exec.Command(program, settings...)
	owned(cmd)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := start(cmd)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	p.log = log.Name()
	// At once, without a checkpoint of what is thrown away anyway.
	p.end = syscall.SIGQUIT
	p.url = fmt.Sprintf("postgres://bench@%s/postgres?sslmode=disable&pool_max_conns=%d",
		net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), storeConnections)
	return p, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// postgresProgram finds one of PostgreSQL's programs: on PATH, or where Debian
// keeps those of each version, and then the newest.
func postgresProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob(filepath.Join(debianPostgres, "*", "bin", name))
	if len(found) == 0 {
		return "", errors.New("PostgreSQL is not installed; type: apt-get install -y postgresql")
	}
	return slices.MaxFunc(found, func(a, b string) int { return debianVersion(a) - debianVersion(b) }), nil
}

// debianPostgres is a variable for tests.
var debianPostgres = "/usr/lib/postgresql"

func debianVersion(path string) int {
	version, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return version
}

// postgresFolder makes the server's folder, and gives what makes a program run as
// its owner.
func postgresFolder(dir string) (func(*exec.Cmd), error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return func(*exec.Cmd) {}, nil
	}
	owner, err := user.Lookup(postgresUser)
	if err != nil {
		return nil, fmt.Errorf("postgres does not run as root, and there is no other user for it: %w", err)
	}
	uid, err := strconv.ParseUint(owner.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(owner.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, err
	}
	if err := letThrough(dir); err != nil {
		return nil, err
	}
	return func(cmd *exec.Cmd) {
		cmd.Dir = dir // one that it may be in
		runAs(cmd, uint32(uid), uint32(gid))
	}, nil
}

// letThrough checks that others than root get to dir. The folder that it lies in is
// the bench's own and is opened to them; those above are not ours to open.
func letThrough(dir string) error {
	const search = 0o001
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	for above := filepath.Dir(dir); above != filepath.Dir(above); above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil {
			return err
		}
		if info.Mode()&search == 0 {
			return fmt.Errorf("postgres does not run as root, and its user may not enter %s; choose another --dir, such as /var/tmp/weir", above)
		}
	}
	return nil
}
