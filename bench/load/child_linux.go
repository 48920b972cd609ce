package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes sure that a server does not outlive a load that is
// killed.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
