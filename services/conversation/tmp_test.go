package conversation
import ("testing";"time";conversationv1 "weir/gen/conversation/v1")
func TestTmp(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "hello")
	m.redis.Kill()
	for i:=0;i<4;i++ {
	s:=time.Now(); m.say(r, "c", "m2", "more"); t.Log("say",time.Since(s))
	s=time.Now(); m.say(r, "c", "m1", "hello"); t.Log("again",time.Since(s))
	s=time.Now(); m.all(r, "c", 1, conversationv1.Order_ORDER_NEWEST_FIRST); t.Log("all",time.Since(s))
	}
	s:=time.Now()
	t.Cleanup(func(){t.Log("end",time.Since(s))})
}
