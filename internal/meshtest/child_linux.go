package meshtest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes sure that a server does not outlive a test that is
// killed. The signal comes when the thread that started the server ends; Go
// ends threads only with goroutines that are locked to them, and tests lock
// none.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
