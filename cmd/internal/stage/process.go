package stage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a program that is started, killed, and started again as it was.
type process struct {
	name    string
	command []string
	log     string // file of what it writes to standard error, over all its lives

	running *exec.Cmd
	ended   chan struct{} // closed when it ended, however it did
}

// grace is what a process gets to end in order: more than a service's own drain.
const grace = 20 * time.Second

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Dir = filepath.Dir(p.log)
	cmd.Stderr = log
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended stands in its log
	}()
	p.running, p.ended = cmd, ended
	return nil
}

// alive is an error with the process's last words once it ended by itself.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %s", p.name, p.lastWords(1))
	default:
		return nil
	}
}

// kill ends the process without a warning.
func (p *process) kill() {
	if p.running == nil {
		return
	}
	_ = p.running.Process.Kill() // it may have ended already
	<-p.ended
	p.running = nil
}

// stop lets the process end in order, or ends it when it takes too long.
func (p *process) stop() {
	if p.running == nil {
		return
	}
	_ = p.running.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(grace):
	}
	p.kill()
}

// lastWords are the last lines of its log.
func (p *process) lastWords(lines int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// poll waits until ready has no error, as long as all processes live.
func poll(ctx context.Context, processes []*process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		for _, p := range processes {
			if err := p.alive(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(30 * time.Millisecond):
		}
	}
}
