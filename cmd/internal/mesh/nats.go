package mesh

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/nats-io/nats-server/v2/server"
)

// maxPayload is one event at most. The largest holds an input of 512 KiB; the default of
// 1 MiB leaves too little for an operation's output.
const maxPayload = 4 << 20

type natsServer struct {
	*server.Server
	url string
}

// startNATS serves what the folder stores. Every write is synced before it is
// acknowledged: an acknowledged event outlives a power cut.
func startNATS(folder string, at *net.TCPAddr, log *slog.Logger) (*natsServer, error) {
	options := &server.Options{
		ServerName: "weir",
		Host:       at.IP.String(),
		Port:       at.Port,
		JetStream:  true,
		StoreDir:   folder,
		SyncAlways: true,
		MaxPayload: maxPayload,
		NoSigs:     true, // the mesh decides when it ends: after the services
	}
	s, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	failed := make(chan error, 1)
	s.SetLogger(&natsLog{log.With("service", "nats"), failed}, false, false)
	s.Start()
	ready := make(chan error, 1)
	go func() {
		if s.ReadyForConnections(patience) {
			ready <- nil
			return
		}
		ready <- errors.New("did not get ready")
	}()
	select {
	case err = <-failed:
	case err = <-ready:
	}
	if err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("nats: %w", err)
	}
	return &natsServer{s, "nats://" + reachable(at)}, nil
}

func (s *natsServer) stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// natsLog is the mesh's log as nats-server knows it. What is fatal there ends the start.
type natsLog struct {
	log    *slog.Logger
	failed chan error
}

func (l *natsLog) Noticef(format string, v ...any) { l.log.Info(fmt.Sprintf(format, v...)) }
func (l *natsLog) Warnf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l *natsLog) Errorf(format string, v ...any)  { l.log.Error(fmt.Sprintf(format, v...)) }
func (l *natsLog) Debugf(string, ...any)           {}
func (l *natsLog) Tracef(string, ...any)           {}

func (l *natsLog) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	select {
	case l.failed <- err:
	default: // later ones follow from the first
		l.log.Error(err.Error())
	}
}
