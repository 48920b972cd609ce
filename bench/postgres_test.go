package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// hidePostgres takes away where Debian has it.
func hidePostgres(t *testing.T) {
	t.Helper()
	was := debianPostgres
	t.Cleanup(func() { debianPostgres = was })
	debianPostgres = t.TempDir()
}

func TestTheNewestPostgresIsFoundWhereDebianHasIt(t *testing.T) {
	hidePostgres(t)
	t.Setenv("PATH", t.TempDir())
	for _, version := range []string{"9.6", "15", "9"} {
		bin := filepath.Join(debianPostgres, version, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, "initdb"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := postgresProgram("initdb")
	if want := filepath.Join(debianPostgres, "15", "bin", "initdb"); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestAFolderThatPostgresCannotReachIsNamed(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	data := filepath.Join(closed, "bench", "postgres")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := letThrough(data); err == nil || !strings.Contains(err.Error(), closed+";") {
		t.Errorf("got %v", err)
	}
}

// What PostgreSQL is compared by is what AppendMessage promises.
func TestPostgresAppendsAsAppendMessageDoes(t *testing.T) {
	m, err := startMesh(t.Context(), quick(t), true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.stop()
	p, err := m.openPostgres()
	if err != nil {
		t.Fatal(err)
	}
	var synced string
	if err := p.pool.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&synced); err != nil || synced != "on" {
		t.Errorf("synchronous_commit is %s, %v", synced, err)
	}
	if _, err := p.pool.Exec(t.Context(), postgresCreate, "talk", agent, 0); err != nil {
		t.Fatal(err)
	}
	insert := func(author, messageID string) (int64, error) {
		var position int64
		var created time.Time
		err := p.pool.QueryRow(t.Context(), postgresInsert, "talk", messageID, author, []byte(text), fingerprint[:]).
			Scan(&position, &created)
		return position, err
	}

	const writers = 20
	positions := make([]int64, writers)
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			var err error
			if positions[i], err = insert(agent, entryName(i)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	slices.Sort(positions)
	for i, position := range positions {
		if position != int64(i+1) {
			t.Fatalf("racing writers got the positions %v", positions)
		}
	}

	var refused *pgconn.PgError
	if _, err := insert(agent, entryName(0)); !errors.As(err, &refused) || refused.Code != "23505" {
		t.Errorf("the same message again: %v", err)
	}
	if _, err := insert("human:eve", "from-outside"); err == nil {
		t.Error("somebody who does not take part said something")
	}
	if position, err := insert("human:ann", "next"); err != nil || position != writers+1 {
		t.Errorf("after refusals the next position is %d, %v", position, err)
	}
	if _, err := p.pool.Exec(t.Context(), "UPDATE conversations SET state = 'CLOSED'"); err != nil {
		t.Fatal(err)
	}
	if _, err := insert(agent, "too-late"); err == nil {
		t.Error("something was said in a closed conversation")
	}
}
