package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
)

// postgresTables is what somebody would keep conversations in who has PostgreSQL
// for them, as far as appending and paging go.
const postgresTables = `
CREATE TABLE conversations (
	id           text PRIMARY KEY,
	title        text NOT NULL,
	owner        text NOT NULL,
	participants text[] NOT NULL,
	state        text NOT NULL,
	head         bigint NOT NULL
) WITH (fillfactor = 50); -- room for the next heads beside the old ones

CREATE TABLE messages (
	conversation text NOT NULL,
	position     bigint NOT NULL,
	message_id   text NOT NULL,
	author       text NOT NULL,
	parts        bytea NOT NULL,
	fingerprint  bytea NOT NULL,
	created      timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (conversation, position),
	UNIQUE (conversation, message_id)
);`

const (
	postgresCreate = `INSERT INTO conversations VALUES ($1, 'bench', $2, '{human:ann}', 'ACTIVE', $3)`

	// postgresInsert does what AppendMessage does: whoever takes part in a
	// conversation that is open gets the next position, alone while it does, and a
	// message id is taken once.
	postgresInsert = `
WITH next AS (
	UPDATE conversations SET head = head + 1
	WHERE id = $1 AND state = 'ACTIVE' AND (owner = $3 OR $3 = ANY (participants))
	RETURNING head
)
INSERT INTO messages (conversation, position, message_id, author, parts, fingerprint)
SELECT $1, head, $2, $3, $4, $5 FROM next
RETURNING position, created`

	// postgresFill is the long conversation.
	postgresFill = `
INSERT INTO messages (conversation, position, message_id, author, parts, fingerprint)
SELECT $1, n, 'm' || n, $3, $4, $5 FROM generate_series(1, $2::bigint) n`

	postgresColumns = `SELECT position, message_id, author, parts, created FROM messages WHERE conversation = $1 `
	postgresNewest  = postgresColumns + `ORDER BY position DESC LIMIT $2`
	postgresFrom    = postgresColumns + `AND position >= $3 ORDER BY position LIMIT $2`
)

// openPgInsert appends to many conversations in PostgreSQL.
func openPgInsert(m *mesh) (workload, error) {
	p, err := m.openPostgres()
	if err != nil {
		return nil, err
	}
	parts, err := postgresParts()
	if err != nil {
		return nil, err
	}
	err = m.each(func(ctx context.Context, n int) error {
		_, err := p.pool.Exec(ctx, postgresCreate, talkID(n), agent, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	appended := make([]int64, m.many)
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			calls[i] = func(ctx context.Context) error {
				n := mine.next()
				appended[n]++
				var position int64
				var created time.Time
				err := p.pool.QueryRow(ctx, postgresInsert, talkID(n), fmt.Sprintf("m%d", appended[n]), agent, parts, fingerprint[:]).
					Scan(&position, &created)
				if err == nil && position != appended[n] {
					err = fmt.Errorf("postgres put message %d at position %d", appended[n], position)
				}
				return err
			}
		}
		return calls, nil
	}, nil
}

// postgresParts is a message's content as it is kept in one column.
func postgresParts() ([]byte, error) {
	return proto.Marshal(&conversationv1.AppendedMessage{Parts: said()})
}

// fillLong puts the long conversation there, and does now what the server would do
// for it later, beside the measurements.
func (p *postgres) fillLong(m *mesh) error {
	if p.filled {
		return nil
	}
	p.filled = true
	parts, err := postgresParts()
	if err != nil {
		return err
	}
	if _, err := p.pool.Exec(m.ctx, postgresCreate, longTalk, agent, m.long); err != nil {
		return err
	}
	if _, err := p.pool.Exec(m.ctx, postgresFill, longTalk, m.long, agent, parts, fingerprint[:]); err != nil {
		return err
	}
	for _, late := range []string{"VACUUM (ANALYZE) messages", "CHECKPOINT"} {
		if _, err := p.pool.Exec(m.ctx, late); err != nil {
			return err
		}
	}
	return nil
}

// openPgSelect reads the newest page of the long conversation in PostgreSQL.
func openPgSelect(m *mesh) (workload, error) {
	return openPgPage(m, int64(m.long), postgresNewest)
}

// openPgSelectOld reads an old page of it.
func openPgSelectOld(m *mesh) (workload, error) {
	from := oldPage(m.long)
	return openPgPage(m, from, postgresFrom, from)
}

// openPgPage reads a page that begins at a position.
func openPgPage(m *mesh, first int64, query string, more ...any) (workload, error) {
	p, err := m.openPostgres()
	if err != nil {
		return nil, err
	}
	if err := p.fillLong(m); err != nil {
		return nil, err
	}
	arguments := append([]any{longTalk, pageSize}, more...)
	return everyCaller(func(ctx context.Context) error {
		rows, err := p.pool.Query(ctx, query, arguments...)
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, scanMessage)
		if err != nil {
			return err
		}
		return isPage("postgres", page, func(m postgresMessage) int64 { return m.Position }, first)
	}), nil
}

// postgresMessage is a row of the table messages as a page gives it.
type postgresMessage struct {
	Position  int64
	MessageID string
	Author    string
	Parts     []byte
	Created   time.Time
}

// scanMessage names the columns by hand: pgx's reflection doubles what a page
// costs its caller.
func scanMessage(row pgx.CollectableRow) (postgresMessage, error) {
	var m postgresMessage
	err := row.Scan(&m.Position, &m.MessageID, &m.Author, &m.Parts, &m.Created)
	return m, err
}
