package cloudsim

import (
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/cloudqueue"
	"github.com/servo-orchestration/servo/internal/latency"
)

// Model contains the latencies, rates and prices of a cloud.
type Model struct {
	Store  cloudblob.Model
	Queue  cloudqueue.Model
	HTTP   latency.Dist // round trip between services
	Push   latency.Dist // from an object's creation to the push of its notification
	Prices Prices
}

// Prices are list prices in dollars.
type Prices struct {
	ClassA, ClassB float64 // per million operations of an object store
	Queue          float64 // per million operations of a task queue: calls and deliveries
	Messages       float64 // per TiB of notifications, published and pushed
}

// messageBytes is the minimum billed size of a message. Each message is billed once when it is published, and once
// for each push.
const messageBytes = 1000

// GCP returns a model of one region of Google Cloud.
func GCP() Model {
	ms := latency.Milliseconds
	return Model{
		Store: cloudblob.GCS(), Queue: cloudqueue.CloudTasks(), HTTP: ms(5, 30), Push: ms(60, 400), //nolint:mnd // the figures of the model
		Prices: Prices{ClassA: 5, ClassB: 0.40, Queue: 0.40, Messages: 40},
	}
}

// String describes the model in one line.
func (m Model) String() string {
	var b strings.Builder
	b.WriteString("log-normal latencies, p50/p99 in ms:")
	for i, l := range []struct {
		name string
		dist latency.Dist
	}{
		{"object write", m.Store.Write},
		{"read", m.Store.Read},
		{"page of a listing", m.Store.List},
		{"delete", m.Store.Delete},
		{"queue call", m.Queue.Call},
		{"queue delivery", m.Queue.Delivery},
		{"notification", m.Push},
		{"HTTP between services", m.HTTP},
	} {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %s %d/%d", l.name, l.dist.P50.Milliseconds(), l.dist.P99.Milliseconds())
	}
	if m.Store.MutationEvery > 0 {
		fmt.Fprintf(&b, "; one write per object name every %s", m.Store.MutationEvery)
	}
	if m.Queue.Every > 0 {
		fmt.Fprintf(&b, "; %d deliveries per second", time.Second/m.Queue.Every)
	}
	fmt.Fprintf(&b, "; prices: class A $%.2f, class B $%.2f, queue operations $%.2f per million, messages $%.0f per TiB with at least 1 kB each way",
		m.Prices.ClassA, m.Prices.ClassB, m.Prices.Queue, m.Prices.Messages)
	return b.String()
}

// Usage counts the operations of a cloud.
type Usage struct {
	Store cloudblob.Usage
	// QueueCalls and QueueDeliveries are both billed.
	QueueCalls, QueueDeliveries int64
	// Messages is the number of published messages, MessagePushes the number of all pushes.
	Messages, MessagePushes int64
}

// Add returns the sum of two usages.
func (u Usage) Add(more Usage) Usage {
	sum := Usage{
		Store:      cloudblob.Usage{},
		QueueCalls: u.QueueCalls + more.QueueCalls, QueueDeliveries: u.QueueDeliveries + more.QueueDeliveries,
		Messages: u.Messages + more.Messages, MessagePushes: u.MessagePushes + more.MessagePushes,
	}
	sum.Store.Add(u.Store)
	sum.Store.Add(more.Store)
	return sum
}

// Bill is a cost in dollars.
type Bill struct {
	ClassA   float64 `json:"class_a"`
	ClassB   float64 `json:"class_b"`
	Queue    float64 `json:"queue"`
	Messages float64 `json:"messages"`
	Total    float64 `json:"total"`
}

// Times returns the bill multiplied by n.
func (b Bill) Times(n float64) Bill {
	return Bill{ClassA: b.ClassA * n, ClassB: b.ClassB * n, Queue: b.Queue * n, Messages: b.Messages * n, Total: b.Total * n}
}

// Bill returns the cost of a usage.
func (p Prices) Bill(u Usage) Bill {
	const million, tebibyte = 1e6, 1 << 40
	store := u.Store.Total()
	b := Bill{
		ClassA:   float64(store.ClassA) / million * p.ClassA,
		ClassB:   float64(store.ClassB) / million * p.ClassB,
		Queue:    float64(u.QueueCalls+u.QueueDeliveries) / million * p.Queue,
		Messages: float64(u.Messages+u.MessagePushes) * messageBytes / tebibyte * p.Messages,
	}
	b.Total = b.ClassA + b.ClassB + b.Queue + b.Messages
	return b
}
