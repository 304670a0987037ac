// Uses a secured broker with franz-go and prints what happened, one JSON object per step. It checks
// nothing; the Python test that started it does.
//
// Arguments: the options of the client as JSON, a topic to create, a topic that it may not use. If
// "live" follows, it uses the second topic, waits for a line of input, and uses it again with the
// same connections.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const deadlineSeconds = 30

type options struct {
	Bootstrap, CA, Certificate, Key  string
	Mechanism, User, Password, Token string
}

func main() {
	var given options
	check(json.Unmarshal([]byte(os.Args[1]), &given))
	topic, other := os.Args[2], os.Args[3]
	if len(os.Args) > 4 {
		live(given, topic, other)
		return
	}
	step("create", func() (string, error) { return "ok", create(given, topic) })
	step("produce", func() (string, error) { return "ok", produceOnce(given, topic) })
	step("consume", func() (string, error) { return consumeOnce(given, topic) })
	step("list", func() (string, error) { return list(given, topic) })
	step("other", func() (string, error) { return "ok", produceOnce(given, other) })
}

// live uses a topic with one producer and one member of a group, before and after a change.
func live(given options, group, topic string) {
	producer := client(given)
	defer producer.Close()
	consumer := member(given, topic, group)
	defer consumer.Close()
	step("produce", func() (string, error) { return "ok", produce(producer, topic, "one") })
	step("consume", func() (string, error) { return consume(consumer, 1) })
	fmt.Println(`{"step": "ready"}`)
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)
	step("produce again", func() (string, error) { return "ok", produce(producer, topic, "two") })
	step("consume again", func() (string, error) { return consume(consumer, 1) })
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func step(name string, work func() (string, error)) {
	result, err := work()
	var known *kerr.Error
	if errors.As(err, &known) {
		result = known.Message
	} else if err != nil {
		result = err.Error()
	}
	line, err := json.Marshal(map[string]string{"step": name, "result": result})
	check(err)
	fmt.Println(string(line))
}

func bounded() (context.Context, context.CancelFunc) {
	slowness, err := strconv.ParseFloat(os.Getenv("SLOWNESS"), 64)
	if err != nil {
		slowness = 1
	}
	return context.WithTimeout(context.Background(),
		time.Duration(deadlineSeconds*slowness*float64(time.Second)))
}

func mechanism(given options) sasl.Mechanism {
	switch given.Mechanism {
	case "PLAIN":
		return plain.Auth{User: given.User, Pass: given.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: given.User, Pass: given.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: given.User, Pass: given.Password}.AsSha512Mechanism()
	}
	return oauth.Auth{Token: given.Token}.AsMechanism()
}

func client(given options, more ...kgo.Opt) *kgo.Client {
	authority, err := os.ReadFile(given.CA)
	check(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if given.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(given.Certificate, given.Key)
		check(err)
		config.Certificates = []tls.Certificate{pair}
	}
	chosen := []kgo.Opt{kgo.SeedBrokers(given.Bootstrap), kgo.DialTLSConfig(config)}
	if given.Mechanism != "" {
		chosen = append(chosen, kgo.SASL(mechanism(given)))
	}
	made, err := kgo.NewClient(append(chosen, more...)...)
	check(err)
	return made
}

func member(given options, topic, group string) *kgo.Client {
	return client(given, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
}

func create(given options, topic string) error {
	context, cancel := bounded()
	defer cancel()
	made := client(given)
	defer made.Close()
	_, err := kadm.NewClient(made).CreateTopic(context, 1, 1, nil, topic)
	return err
}

func list(given options, topic string) (string, error) {
	context, cancel := bounded()
	defer cancel()
	made := client(given)
	defer made.Close()
	found, err := kadm.NewClient(made).ListTopics(context)
	if err == nil && !found.Has(topic) {
		return "missing", nil
	}
	return "ok", err
}

func produceOnce(given options, topic string) error {
	made := client(given)
	defer made.Close()
	if err := ping(made); err != nil {
		return err
	}
	return produce(made, topic, "one", "two", "three")
}

// ping returns the error of a login that was refused. The other calls try again until their deadline.
func ping(made *kgo.Client) error {
	context, cancel := bounded()
	defer cancel()
	return made.Ping(context)
}

func produce(producer *kgo.Client, topic string, values ...string) error {
	context, cancel := bounded()
	defer cancel()
	for _, value := range values {
		record := &kgo.Record{Topic: topic, Value: []byte(value)}
		if err := producer.ProduceSync(context, record).FirstErr(); err != nil {
			return err
		}
	}
	return nil
}

func consumeOnce(given options, topic string) (string, error) {
	consumer := member(given, topic, topic)
	defer consumer.Close()
	if err := ping(consumer); err != nil {
		return "", err
	}
	found, err := consume(consumer, 3)
	if err != nil {
		return found, err
	}
	context, cancel := bounded()
	defer cancel()
	return found, consumer.CommitUncommittedOffsets(context)
}

func consume(consumer *kgo.Client, count int) (string, error) {
	context, cancel := bounded()
	defer cancel()
	var values []string
	for len(values) < count {
		fetches := consumer.PollFetches(context)
		if err := fetches.Err(); err != nil {
			return strings.Join(values, " "), err
		}
		fetches.EachRecord(func(each *kgo.Record) { values = append(values, string(each.Value)) })
	}
	return strings.Join(values, " "), nil
}
