package project

import (
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
)

// Limits of channels.
const (
	maxChannels   = 100
	maxURL        = 2048
	maxPort       = 65_535
	maxRecipients = 50
	smtpsPort     = 465
	slackHost     = "hooks.slack.com"
)

var topicPattern = regexp.MustCompile(`^projects/[a-z0-9][a-z0-9.:-]{0,99}/topics/[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`)

func compareChannels(a, b release.Channel) int { return strings.Compare(a.Name, b.Name) }

// channelsField is the field channels in servo.yaml and in its environments.
var channelsField = other("channels", shape{
	Type: "object", PropertyNames: &shape{Pattern: schedulePattern}, MaxProperties: maxChannels, Additional: new(channelShape()),
	Examples: []any{map[string]any{"data": map[string]any{"slack": map[string]any{"url": "file:slack"}}}},
	Description: "Where alerts are sent, by name. Each channel is a webhook, slack, smtp, pubsub or a file. " +
		"Only the hosts that channels name are called.",
}, func(f yamlFile, n *yaml.Node, _ *Project) { f.channels(n) })

func channelShape() shape {
	s := channelFields.shape(shape{Description: "A channel: one of webhook, slack, smtp, pubsub and file."})
	for _, kind := range channelKinds {
		s.AnyOf = append(s.AnyOf, &shape{Required: []string{kind}})
	}
	return s
}

// channelKinds are the kinds of channels. Each kind is a field, and a channel has exactly one of these fields.
var channelKinds = []string{"webhook", "slack", "smtp", "pubsub", "file"}

var channelFields = table[release.Channel]{
	other("webhook", webhookFields.shape(shape{
		Description: "Send a CloudEvent to a URL.", Examples: []any{map[string]any{"url": "https://alerts.example.com/servo", "secret": "file:alerts"}},
	}, "url"), func(f yamlFile, n *yaml.Node, c *release.Channel) {
		c.Webhook = &release.WebhookChannel{}
		f.mapping(n, "webhook", webhookFields.fields(f, c.Webhook))
		f.require(n, "webhook", "url")
	}),
	other("slack", slackFields.shape(shape{
		Description: "Send a message to an incoming webhook of Slack.", Examples: []any{map[string]any{"url": "file:slack"}},
	}, "url"), func(f yamlFile, n *yaml.Node, c *release.Channel) {
		c.Slack = &release.SlackChannel{Host: slackHost}
		f.mapping(n, "slack", slackFields.fields(f, c.Slack))
		f.require(n, "slack", "url")
	}),
	other("smtp", smtpFields.shape(shape{
		Description: "Send mail.",
		Examples:    []any{map[string]any{"host": "smtp.example.com", "from": "servo@example.com", "to": []any{"data@example.com"}, "user": "servo", "password": "file:smtp"}},
	}, "host", "from", "to"), func(f yamlFile, n *yaml.Node, c *release.Channel) { f.smtp(n, c) }),
	other("pubsub", pubsubFields.shape(shape{
		Description: "Publish a CloudEvent to a topic of Pub/Sub. Only the services on Google Cloud can use this channel.", Examples: []any{map[string]any{"topic": "projects/p/topics/servo"}},
	}, "topic"), func(f yamlFile, n *yaml.Node, c *release.Channel) {
		c.PubSub = &release.PubSubChannel{}
		f.mapping(n, "pubsub", pubsubFields.fields(f, c.PubSub))
		f.require(n, "pubsub", "topic")
	}),
	other("file", fileFields.shape(shape{
		Description: "Append a line of JSON to a file. Only `servo` on one machine can use this channel.", Examples: []any{map[string]any{"path": "alerts.jsonl"}},
	}, "path"), func(f yamlFile, n *yaml.Node, c *release.Channel) {
		c.File = &release.FileChannel{}
		f.mapping(n, "file", fileFields.fields(f, c.File))
		f.require(n, "file", "path")
	}),
	other("allow_private", shape{
		Type: "boolean", Default: false,
		Description: "true: the host may have a private address, and a webhook may use http. Link-local addresses, such as metadata servers, are never called.",
	}, func(f yamlFile, n *yaml.Node, c *release.Channel) { f.boolean(n, "allow_private", &c.AllowPrivate) }),
}

var webhookFields = table[release.WebhookChannel]{
	other("url", shape{Type: "string", Pattern: `^https?://`, Description: "The URL, with https. It is not a secret.", Examples: []any{"https://alerts.example.com/servo"}},
		func(f yamlFile, n *yaml.Node, c *release.WebhookChannel) { c.URL, _ = f.text(n, "url") }),
	channelSecret("secret", "A reference to the key that signs the messages with HMAC-SHA256. Default: messages are not signed.",
		func(c *release.WebhookChannel) *string { return &c.Secret }),
}

var slackFields = table[release.SlackChannel]{
	channelSecret("url", "A reference to the URL, which is a secret.", func(c *release.SlackChannel) *string { return &c.URL }),
	other("host", shape{Type: "string", Default: slackHost, Description: "The host that the URL must have. Change it for a server with the interface of Slack's webhooks."},
		func(f yamlFile, n *yaml.Node, c *release.SlackChannel) { f.host(n, &c.Host) }),
}

var smtpFields = table[release.SMTPChannel]{
	other("host", shape{Type: "string", Description: "The mail server.", Examples: []any{"smtp.example.com"}},
		func(f yamlFile, n *yaml.Node, c *release.SMTPChannel) { f.host(n, &c.Host) }),
	whole("port", shape{Description: "The port of the mail server.", Default: 587}, 1, maxPort, func(c *release.SMTPChannel) *int32 { return &c.Port }),
	choice("tls", shape{Description: "How the connection is encrypted. Default: implicit for port 465, else starttls."},
		[]string{release.StartTLS, release.ImplicitTLS, release.NoTLS}, func(c *release.SMTPChannel) *string { return &c.TLS }),
	other("from", shape{Type: "string", Description: "The sender.", Examples: []any{"servo@example.com"}},
		func(f yamlFile, n *yaml.Node, c *release.SMTPChannel) { c.From = f.mailAddress(n, "from") }),
	other("to", shape{Type: "array", Items: &shape{Type: "string"}, MinItems: 1, MaxItems: maxRecipients, Description: "The recipients.", Examples: []any{[]any{"data@example.com"}}},
		func(f yamlFile, n *yaml.Node, c *release.SMTPChannel) {
			f.each(n, "to", func(item *yaml.Node) { c.To = append(c.To, f.mailAddress(item, "a recipient in to")) })
			f.notEmptyList(n, "to", "name a recipient")
			if len(c.To) > maxRecipients {
				f.fail(n, "use a mailing list", "the field to has %d recipients; at most %d are allowed", len(c.To), maxRecipients)
			}
		}),
	other("user", shape{Type: "string", Description: "The user to log in as. Default: do not log in."},
		func(f yamlFile, n *yaml.Node, c *release.SMTPChannel) { c.User, _ = f.text(n, "user") }),
	channelSecret("password", "A reference to the password of the user.", func(c *release.SMTPChannel) *string { return &c.Password }),
}

var pubsubFields = table[release.PubSubChannel]{
	other("topic", shape{Type: "string", Pattern: topicPattern.String(), PatternHelp: "Write projects/PROJECT/topics/TOPIC.", Description: "The topic: projects/PROJECT/topics/TOPIC."},
		func(f yamlFile, n *yaml.Node, c *release.PubSubChannel) {
			if s, ok := f.text(n, "topic"); ok && !topicPattern.MatchString(s) {
				f.fail(n, "write projects/PROJECT/topics/TOPIC", "%s is not a topic", quoteShort(s))
			} else if ok {
				c.Topic = s
			}
		}),
}

var fileFields = table[release.FileChannel]{
	other("path", shape{Type: "string", MinLength: 1, Description: "The file, relative to the project. It must be in the folder of the project.", Examples: []any{"alerts.jsonl"}},
		func(f yamlFile, n *yaml.Node, c *release.FileChannel) {
			s := f.nonEmpty(n, "path")
			switch clean := path.Clean(s); {
			case s == "":
			case strings.HasPrefix(s, "/") || clean == ".." || strings.HasPrefix(clean, "../") || clean == "." || len(s) > maxPlace || strings.ContainsRune(s, 0):
				f.fail(n, "write a path in the project, for example alerts.jsonl", "the file %s is not in the folder of the project", quoteShort(s))
			case slices.Contains([]string{AssetsDir, "tests", SchedulesDir, ".servo", ConfigFile}, strings.SplitN(clean, "/", 2)[0]):
				f.fail(n, "write another path, for example alerts.jsonl", "%s is read by Servo", quoteShort(s))
			default:
				c.Path = clean
			}
		}),
}

// channelSecret is a field with a reference to a secret.
func channelSecret[T any](name, about string, at func(*T) *string) field[T] {
	return other(name, shape{
		Type: "string", Pattern: plan.SecretPattern, PatternHelp: "Write file:NAME, env:VARIABLE or gcp:projects/PROJECT/secrets/SECRET.",
		Description: about + " file:NAME, env:VARIABLE or gcp:projects/PROJECT/secrets/SECRET.", Examples: []any{"file:alerts"},
	}, func(f yamlFile, n *yaml.Node, to *T) {
		if n.Kind != yaml.ScalarNode {
			f.fail(n, "", "%s must be a reference to a secret, got %s", name, kindOf(n))
			return
		}
		if _, err := plan.ParseSecret(n.Value); err != nil { // the value may be the secret itself, so do not quote it
			f.fail(n, "write a reference to the secret, never its value", "%s is not a secret reference: %v", name, err)
			return
		}
		*at(to) = n.Value
	})
}

// require reports required fields that a mapping lacks.
func (f yamlFile) require(n *yaml.Node, what string, names ...string) {
	for _, name := range names {
		if n.Kind == yaml.MappingNode && !hasField(n, name) {
			f.fail(n, "add "+name, "%s has no %s", what, name)
		}
	}
}

// host reads the name of a host.
func (f yamlFile) host(n *yaml.Node, to *string) {
	s, ok := f.text(n, "host")
	switch {
	case !ok:
	case s == "" || len(s) > maxKeyPart*2 || strings.ContainsAny(s, "/:@ \t\r\n"):
		f.fail(n, "write only the name, for example smtp.example.com", "%s is not a host", quoteShort(s))
	default:
		*to = strings.ToLower(s)
	}
}

// mailAddress reads an e-mail address without a display name.
func (f yamlFile) mailAddress(n *yaml.Node, what string) string {
	s, ok := f.text(n, what)
	if !ok {
		return ""
	}
	if a, err := mail.ParseAddress(s); err != nil || a.Address != s {
		f.fail(n, "write an address such as data@example.com", "%s is not a mail address: %s", what, quoteShort(s))
	}
	return s
}

// smtp reads a channel that sends e-mail.
func (f yamlFile) smtp(n *yaml.Node, c *release.Channel) {
	before := len(f.problems)
	s := &release.SMTPChannel{Port: 587}
	c.SMTP = s
	f.mapping(n, "smtp", smtpFields.fields(f, s))
	f.require(n, "smtp", "host", "from", "to")
	if s.TLS == "" {
		if s.TLS = release.StartTLS; s.Port == smtpsPort {
			s.TLS = release.ImplicitTLS
		}
	}
	switch {
	case len(f.problems) > before:
	case (s.User == "") != (s.Password == ""):
		f.fail(n, "set both, or neither", "user and password belong together")
	case s.User != "" && s.TLS == release.NoTLS:
		f.fail(n, "remove tls: none", "a password is never sent without encryption")
	}
}

// channels reads a mapping from names to channels.
func (f yamlFile) channels(n *yaml.Node) {
	known := fields{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if !event.ValidScheduleName(key.Value) {
			f.fail(key, "use 1 to 128 of a-z, 0-9, _ and -, and begin with a letter or digit", "invalid name of a channel %s", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) { f.channel(key.Value, n) }
	}
	f.mapping(n, "channels", known)
	if len(known) > maxChannels {
		f.fail(n, "remove some", "there are %d channels; at most %d are allowed", len(known), maxChannels)
	}
}

// channel reads one channel.
func (f yamlFile) channel(name string, n *yaml.Node) {
	c := release.Channel{Name: name}
	before := len(f.problems)
	f.loader.channels = append(f.loader.channels, name)
	f.mapping(n, "channel "+name, channelFields.fields(f, &c))
	if n.Kind != yaml.MappingNode || len(f.problems) > before {
		return
	}
	var kinds []string
	for _, kind := range channelKinds {
		if hasField(n, kind) {
			kinds = append(kinds, kind)
		}
	}
	switch {
	case len(kinds) == 0:
		f.fail(n, "add file: {path: alerts.jsonl}, for example", "channel %s has no kind: expected one of %s", name, strings.Join(channelKinds, ", "))
	case len(kinds) > 1:
		f.fail(n, "make two channels of it", "channel %s is both %s and %s", name, kinds[0], kinds[1])
	case c.AllowPrivate && (c.File != nil || c.PubSub != nil):
		f.fail(n, "remove allow_private", "allow_private has no effect on %s", kinds[0])
	case c.Webhook != nil:
		if problem, suggestion := wrongURL(c.Webhook.URL, c.AllowPrivate); problem != "" {
			f.fail(n, suggestion, "the url of channel %s %s", name, problem)
		}
	}
	f.project.Channels = append(f.project.Channels, c)
}

// wrongURL returns the problem with the URL of a webhook, or "", and a suggestion.
func wrongURL(text string, private bool) (problem, suggestion string) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || len(text) > maxURL:
		return "is not a URL", "write https://HOST/PATH"
	case u.User != nil:
		return "has a password, which everyone who reads the release can see", "remove it, and use secret to sign the messages"
	case u.Fragment != "":
		return "has a fragment, which is not sent", "remove the part from #"
	case u.Scheme == "http" && !private:
		return "is not encrypted", "use https, or, for a host in a private network, add allow_private: true to the channel"
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Sprintf("has the scheme %s", quoteShort(u.Scheme)), "write https://HOST/PATH"
	}
	if ip := net.ParseIP(u.Hostname()); ip != nil && (ip.IsLinkLocalUnicast() || ip.IsUnspecified()) {
		return "is a link-local address, which is never called", "use the name of the host"
	}
	return "", ""
}
