package journal_test
import ("testing";"time";"log/slog";"weir/internal/journal";"weir/internal/meshtest")
func TestLost(t *testing.T){
 n:=meshtest.StartNATS(t)
 p:=meshtest.StartProxy(t,n.Addr())
 j,err:=journal.Open(t.Context(),meshtest.Connect(t,"nats://"+p.Addr()),"test",1,slog.Default())
 d,err:=journal.Open(t.Context(),n.Connect(),"test",1,slog.Default())
 v,err:=j.Append(t.Context(),journal.Event{ID:"1",Key:journal.Key{"acme","k","x"}},0)
 t.Log("append",v,err)
 p.Swallow()
 done:=make(chan struct{})
 go func(){ defer close(done);s:=time.Now(); v,err:=j.Append(t.Context(),journal.Event{ID:"2",Key:journal.Key{"acme","k","x"}},1)
 t.Log("append",time.Since(s),v,err)}()
 meshtest.Eventually(t,"x",func() bool { l,_:=d.LastSequence(t.Context()); return l==2})
 p.Cut()
 <-done
 for _,id:=range []string{"","*"} {
 s:=time.Now()
 v,err=d.Append(t.Context(),journal.Event{ID:"9"+id,Key:journal.Key{"acme","k",id}},0)
 t.Logf("append %q %v %v %v",id,time.Since(s),v,err)
 v,err=d.Replay(t.Context(),journal.Key{"acme","k",id},0,func(journal.Event) error {return nil})
 t.Logf("replay %q %v %v %v",id,time.Since(s),v,err)
 }
}
