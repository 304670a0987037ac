// A member of the new group protocol (KIP-848) as a process; `new_members.py` describes what it
// says. Arguments: BOOTSTRAP GROUP TOPIC INSTANCE. A topic that begins with ^ is a regular
// expression, an instance of - is none.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	lock  sync.Mutex
	owned = map[string]bool{}
)

func main() {
	topic, instance := os.Args[3], os.Args[4]
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumerGroup(os.Args[2]),
		kgo.ServerSideBalancer(),
		kgo.Balancers(kgo.StickyBalancer()),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(told("assigned", true)),
		kgo.OnPartitionsRevoked(told("revoked", false)),
		kgo.OnPartitionsLost(told("lost", false)),
	}
	if strings.HasPrefix(topic, "^") {
		options = append(options, kgo.ConsumeRegex())
	}
	if instance != "-" {
		options = append(options, kgo.InstanceID(instance))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	closing, stop := context.WithCancel(context.Background())
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		stop()
	}()
	for closing.Err() == nil {
		poll(client)
	}
	client.CloseAllowingRebalance()
	say("closed")
}

// poll reads, reports and commits. Partitions move only between two polls.
func poll(client *kgo.Client) {
	brief, end := context.WithTimeout(context.Background(), 50*time.Millisecond)
	fetches := client.PollFetches(brief)
	end()
	fetches.EachError(func(_ string, _ int32, err error) {
		if err != context.DeadlineExceeded {
			say("error " + err.Error())
		}
	})
	records := fetches.Records()
	for _, record := range records {
		say(fmt.Sprintf("record %s %d %d %s", record.Topic, record.Partition, record.Offset, record.Value))
	}
	if len(records) > 0 {
		limit, done := context.WithTimeout(context.Background(), 20*time.Second)
		if err := client.CommitRecords(limit, records...); err != nil {
			say("error " + err.Error())
		}
		done()
	}
	client.AllowRebalance()
}

func told(what string, gains bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		lock.Lock()
		var names []string
		for topic, partitions := range topics {
			for _, partition := range partitions {
				name := fmt.Sprintf("%s-%d", topic, partition)
				names = append(names, name)
				if gains {
					owned[name] = true
				} else {
					delete(owned, name)
				}
			}
		}
		var all []string
		for name := range owned {
			all = append(all, name)
		}
		lock.Unlock()
		sort.Strings(names)
		say(strings.Join(append([]string{what}, names...), " "))
		say(strings.Join(append([]string{"owned"}, all...), " "))
	}
}

func say(line string) {
	lock.Lock()
	defer lock.Unlock()
	fmt.Println(line)
}
