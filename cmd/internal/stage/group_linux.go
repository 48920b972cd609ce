package stage

import "syscall"

// ownGroup puts a process into a group of its own, so that Ctrl-C reaches the demo alone, which
// ends its processes in its own order. If the demo is killed, they are too: the
// kernel sends them the signal when the thread ends that started them, and Go ends
// threads early only where a goroutine is locked to one, which none here is.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
