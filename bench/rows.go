package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// row is one line of the table.
type row struct {
	name string
	// ratioTo names the row that this one is compared with, if any, at the same
	// number of callers and on the same servers.
	ratioTo string
	// aim is the least ratio to reach with aimCallers callers, 0 for none.
	aim float64
	// open prepares, once for each mesh, what the row works on. Rows that need no
	// servers have none.
	open func(*mesh) (workload, error)
	// beside names the rows that this one shares a mesh with. Those that need many
	// messages or streams have one of their own, as the others would pay for these.
	beside string
	// deliveries is how many streams each call's message reaches, 0 where there are
	// none.
	deliveries int
	// messages is how many operations each call makes, 0 where it is what it is on
	// the row's stage.
	messages int
	// between says that callers do other things between calls, which the rate
	// leaves out.
	between bool
	// below says that the aim is to stay below it.
	below bool

	// engine decides by so many rules, in this process. The ratio of another engine
	// than weir's is to stay below 1.
	engine    string
	rules     int
	predicate bool // the rule that decides looks at the input
}

// aimCallers is the load that the aims of rows on a mesh are set for.
const aimCallers = 64

func (r *row) inProcess() bool { return r.engine != "" }

// aimed says whether the row has an aim at so many callers.
func (r *row) aimed(callers int) bool {
	if r.inProcess() {
		return r.ratioTo != "" && callers == decideCallers
	}
	return r.aim != 0 && callers == aimCallers
}

// reaches says whether a ratio is what the row aims at.
func (r *row) reaches(ratio float64) bool {
	if r.inProcess() {
		return ratio < 1
	}
	if r.below {
		return ratio < r.aim
	}
	return ratio >= r.aim
}

// batch is how many operations one call makes.
func (r *row) batch(on stage) int { return cmp.Or(r.messages, on.batch()) }

// What rows are compared with.
const (
	rawPublish = "raw_publish"
	emptyRPC   = "empty_rpc"
	append10   = "aggregate_append_10"
	newest100  = "page_newest_100"
	cycle1     = "cycle_1"

	enqueueShallow = "enqueue_depth_10"
	claimShallow   = "claim_depth_10"
	doneShallow    = "done_depth_10"
)

// What shares a mesh.
const (
	pages = "pages"
	fans  = "fans"
	deep  = "deep"
	queue = "queue"
)

// table is all rows. Those that are compared stand together.
var table = slices.Concat(meshRows, decideRows())

var meshRows = []row{
	{name: rawPublish, open: openRawPublish},
	{name: "aggregate_append", ratioTo: rawPublish, aim: 0.6, open: openAppend},
	{name: "aggregate_create", ratioTo: rawPublish, open: openCreate},
	{name: "enqueue", ratioTo: rawPublish, aim: 0.4, open: openEnqueue},
	{name: "claim_done", ratioTo: rawPublish, aim: 0.4, open: openClaimDone},
	{name: "append_message", ratioTo: rawPublish, aim: 0.4, open: openAppendMessage},
	{name: "append_message_one", ratioTo: rawPublish, open: openAppendMessageOne},
	{name: "xadd", ratioTo: rawPublish, open: openXadd},
	{name: "pg_insert", ratioTo: rawPublish, open: openPgInsert},
	{name: emptyRPC, open: openEmptyRPC},
	{name: "health_rpc", ratioTo: emptyRPC, open: openHealthRPC},
	{name: "read", ratioTo: emptyRPC, aim: 0.5, open: openRead},
	{name: "check", ratioTo: emptyRPC, aim: 0.7, open: openCheck},
	{name: append10, open: openAppendOne(10)},
	// Within 1.5 times the cost.
	{name: "aggregate_append_10k", ratioTo: append10, aim: 1 / 1.5, open: openAppendOne(10_000)},
	{name: newest100, beside: pages, open: openNewest(shortTalk)},
	{name: "page_newest_1m", beside: pages, ratioTo: newest100, aim: 0.7, open: openNewest(longTalk)},
	{name: "page_old_1m", beside: pages, ratioTo: newest100, aim: 0.3, open: openOld},
	{name: "xrange", beside: pages, ratioTo: newest100, open: openXrange},
	{name: "xrange_old", beside: pages, ratioTo: newest100, open: openXrangeOld},
	{name: "pg_select", beside: pages, ratioTo: newest100, open: openPgSelect},
	{name: "pg_select_old", beside: pages, ratioTo: newest100, open: openPgSelectOld},
	{name: "tail_fanout_1000", beside: fans, deliveries: tailCount, open: openTailFanout},
	{name: enqueueShallow, beside: deep, between: true, open: openDepth(toEnqueue, shallowDepth)},
	{name: "enqueue_depth_10000", beside: deep, between: true, ratioTo: enqueueShallow, aim: 1 / 1.5, open: openDepth(toEnqueue, deepDepth)},
	{name: claimShallow, beside: deep, between: true, open: openDepth(toClaim, shallowDepth)},
	{name: "claim_depth_10000", beside: deep, between: true, ratioTo: claimShallow, aim: 1 / 1.5, open: openDepth(toClaim, deepDepth)},
	{name: doneShallow, beside: deep, between: true, open: openDepth(toDone, shallowDepth)},
	{name: "done_depth_10000", beside: deep, between: true, ratioTo: doneShallow, aim: 1 / 1.5, open: openDepth(toDone, deepDepth)},
	{name: cycle1, beside: queue, open: openCycle(1)},
	{name: "cycle_32", beside: queue, ratioTo: cycle1, messages: 32, open: openCycle(32)},
	{name: "asynq_cycle", beside: queue, ratioTo: cycle1, aim: 1, below: true, open: openAsynqCycle},
	{name: "river_cycle", beside: queue, ratioTo: cycle1, aim: 1, below: true, open: openRiverCycle},
	{name: "js_workqueue_cycle", beside: queue, ratioTo: cycle1, open: openWorkQueueCycle},
}

// chosen gives the named rows, all if none is named, with those that they are
// compared with, in the table's order.
func chosen(names []string) ([]row, error) {
	if len(names) == 0 {
		return table, nil
	}
	want := slices.Clone(names)
	for _, name := range names {
		i := slices.IndexFunc(table, func(r row) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("--only: there is no row %q; there are %s", name, strings.Join(rowNames(table), ", "))
		}
		want = append(want, table[i].ratioTo)
	}
	return slices.DeleteFunc(slices.Clone(table), func(r row) bool { return !slices.Contains(want, r.name) }), nil
}

// meshes are the rows that need servers, by the mesh that they share.
func meshes(rows []row) [][]row {
	var all [][]row
	for _, r := range rows {
		if r.inProcess() {
			continue
		}
		i := slices.IndexFunc(all, func(others []row) bool { return others[0].beside == r.beside })
		if i < 0 {
			i, all = len(all), append(all, nil)
		}
		all[i] = append(all[i], r)
	}
	return all
}

func rowNames(rows []row) []string {
	var names []string
	for _, r := range rows {
		// A row of several numbers of rules is named once.
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
	}
	return names
}
