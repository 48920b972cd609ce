package identity

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"weir/internal/fault"
	"weir/internal/identity/watched"
)

// TokenFile sends the bearer token in a file with every call, reading the file again
// when it changes. Without requireTLS it is sent over plain connections too, which is
// for loopback. While the file can't be read calls fail as if the peer were away.
func TokenFile(path string, requireTLS bool) credentials.PerRPCCredentials {
	return &tokenFile{path: path, requireTLS: requireTLS, now: time.Now}
}

type tokenFile struct {
	path       string
	requireTLS bool
	now        func() time.Time

	mu   sync.Mutex // guards file until it was read once
	file *watched.File[string]
}

func (t *tokenFile) RequireTransportSecurity() bool { return t.requireTLS }

func (t *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	file, err := t.open()
	if err != nil {
		return nil, fault.New(fault.PeerUnavailable, "a service weir needs can't be called for want of a credential").Wrap(err)
	}
	return map[string]string{"authorization": "Bearer " + file.Get().Value}, nil
}

// open waits for the file to be there: whoever writes it may start after us.
func (t *tokenFile) open() (*watched.File[string], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file != nil {
		return t.file, nil
	}
	file, err := watched.Open(t.path, slog.Default(), t.now, parseToken)
	if err != nil {
		return nil, err
	}
	t.file = file
	return file, nil
}

func parseToken(data []byte) (string, error) {
	token := bytes.TrimSpace(data)
	if len(token) == 0 || len(token) > maxToken || bytes.ContainsAny(token, " \r\n") {
		return "", errors.New("not one token")
	}
	return string(token), nil
}
