// Package deploy_test tests the Terraform module and the Dockerfile: the module parses, its
// references resolve, and the programs accept the arguments that it passes.
package deploy_test

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// module lists the declarations and the references of the files.
type module struct {
	t        *testing.T
	declared map[string]hcl.Range // "var.x", "local.x", "data.type.name", "type.name", "output.x"
	used     map[string]hcl.Range
	locals   map[string]hclsyntax.Expression
	blocks   map[string]*hclsyntax.Block
	moved    []*hclsyntax.Block
}

func load(t *testing.T) *module {
	t.Helper()
	m := &module{
		t: t, declared: map[string]hcl.Range{}, used: map[string]hcl.Range{},
		locals: map[string]hclsyntax.Expression{}, blocks: map[string]*hclsyntax.Block{},
	}
	paths, err := filepath.Glob("terraform/*.tf")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	parser := hclparse.NewParser()
	for _, path := range paths {
		file, diagnostics := parser.ParseHCLFile(path)
		require.False(t, diagnostics.HasErrors(), diagnostics.Error())
		require.True(t, bytes.Equal(hclwrite.Format(file.Bytes), file.Bytes), "%s: run terraform fmt", path)
		body, ok := file.Body.(*hclsyntax.Body)
		require.True(t, ok)
		for _, block := range body.Blocks {
			if block.Type == "moved" { // the address in "from" no longer exists
				m.moved = append(m.moved, block)
				continue
			}
			m.declare(block)
			m.walk(block.Body, nil)
		}
	}
	return m
}

func (m *module) declare(block *hclsyntax.Block) {
	name := ""
	switch block.Type {
	case "variable":
		name = "var." + block.Labels[0]
	case "output":
		name = "output." + block.Labels[0]
	case "data":
		name = "data." + strings.Join(block.Labels, ".")
	case "resource":
		name = strings.Join(block.Labels, ".")
	case "locals":
		for key, attribute := range block.Body.Attributes {
			m.add("local."+key, attribute.SrcRange)
			m.locals[key] = attribute.Expr
		}
		return
	case "terraform":
		return
	default:
		require.Failf(m.t, "a block of an unknown type", "%s at %s", block.Type, block.TypeRange)
	}
	m.add(name, block.TypeRange)
	m.blocks[name] = block
}

func (m *module) add(name string, at hcl.Range) {
	require.NotContains(m.t, m.declared, name, "declared twice: %s", at)
	m.declared[name] = at
}

// walk records the references of a body; iterators are the names that dynamic blocks define.
func (m *module) walk(body *hclsyntax.Body, iterators []string) {
	for name, attribute := range body.Attributes {
		if name == "type" { // a variable's attribute "type" contains no references
			continue
		}
		for _, traversal := range attribute.Expr.Variables() {
			m.use(traversal, iterators)
		}
	}
	for _, block := range body.Blocks {
		inner := iterators
		if block.Type == "dynamic" {
			inner = append(slices.Clone(iterators), block.Labels[0])
		}
		m.walk(block.Body, inner)
	}
}

func (m *module) use(traversal hcl.Traversal, iterators []string) {
	root := traversal.RootName()
	if slices.Contains([]string{"each", "count", "self", "path"}, root) || slices.Contains(iterators, root) {
		return
	}
	name := nameOf(traversal)
	require.Contains(m.t, name, ".", "%s", traversal.SourceRange())
	m.used[name] = traversal.SourceRange()
}

// nameOf returns the name of the declaration that a traversal refers to.
func nameOf(traversal hcl.Traversal) string {
	parts := []string{traversal.RootName()}
	n := 2
	if parts[0] == "data" {
		n = 3
	}
	for _, step := range traversal[1:min(n, len(traversal))] {
		if named, ok := step.(hcl.TraverseAttr); ok {
			parts = append(parts, named.Name)
		}
	}
	return strings.Join(parts, ".")
}

func TestReferencesAndDeclarationsMatch(t *testing.T) {
	m := load(t)
	for name, at := range m.used {
		require.Contains(t, m.declared, name, "%s", at)
	}
	for name, at := range m.declared {
		if strings.HasPrefix(name, "var.") || strings.HasPrefix(name, "local.") || strings.HasPrefix(name, "data.") {
			require.Contains(t, m.used, name, "unused declaration at %s", at)
		}
	}
	for name, block := range m.blocks {
		if strings.HasPrefix(name, "var.") || strings.HasPrefix(name, "output.") {
			require.Contains(t, block.Body.Attributes, "description", name)
		}
	}
}

// Renamed resources of an installation move to their new address, and are not recreated.
func TestRenamedResourcesAreMoved(t *testing.T) {
	p := installed(t, nil)
	address := func(block *hclsyntax.Block, name string) hcl.Traversal {
		require.Contains(t, block.Body.Attributes, name)
		traversal, diagnostics := hcl.AbsTraversalForExpr(block.Body.Attributes[name].Expr)
		require.False(t, diagnostics.HasErrors(), diagnostics.Error())
		return traversal
	}
	moved := map[string]string{}
	for _, block := range p.moved {
		require.Len(t, block.Body.Attributes, 2)
		require.Empty(t, block.Body.Blocks)
		from, to := address(block, "from"), address(block, "to")
		require.NotContains(t, p.declared, nameOf(from), "%s", block.TypeRange)
		require.Equal(t, from.RootName(), to.RootName(), "%s: must move within one type", block.TypeRange)
		require.Len(t, to, 3)
		at, ok := to[2].(hcl.TraverseIndex)
		require.True(t, ok)
		require.Contains(t, p.instances(nameOf(to)), at.Key.AsString())
		moved[nameOf(from)] = nameOf(to)
	}
	require.Equal(t, map[string]string{
		"google_cloud_run_v2_service.worker":                        "google_cloud_run_v2_service.workers",
		"google_cloud_run_v2_service_iam_member.queue_calls_worker": "google_cloud_run_v2_service_iam_member.queue_calls_workers",
	}, moved)
}

// value evaluates an expression without references.
func (m *module) value(e hclsyntax.Expression) cty.Value {
	m.t.Helper()
	v, diagnostics := e.Value(nil)
	require.False(m.t, diagnostics.HasErrors(), diagnostics.Error())
	return v
}

// list returns the strings of a list.
func list(v cty.Value) []string {
	var texts []string
	for _, item := range v.AsValueSlice() {
		texts = append(texts, item.AsString())
	}
	return texts
}

// Cloud IAM allows only the compactor to write manifests and state, and allows no account to change the ledger.
func TestOnlyTheCompactorCanWriteManifestsAndState(t *testing.T) {
	m := load(t)
	d := ids.Domain{Tenant: "acme", Workspace: "prod"}
	ulid := ids.AtTime(clock.System{}.Now())
	folder := func(key string) string { return strings.Split(key, "/")[0] }
	written := map[string][]string{
		"compactor": {
			folder(manifest.Key(d, 1)), folder(manifest.StateKey(d, "runs", "l0", ulid)), folder(manifest.HintKey(d)),
			folder(manifest.BoundaryKey(d)), folder(manifest.PinKey(d, 1)), folder(wakeup.Prefix),
		},
		"archive":    {folder(archive.Key(d, ulid))},
		"sweeper":    {folder(wakeup.Wakeup{Domain: d}.Key())},
		"dispatcher": {folder(ledger.Key(d, ulid)), folder(plan.Ref(d, "x"))}, // the dispatcher's automators plan the runs of schedules and backfills
		"worker":     {folder(contract.AssetsPrefix(d)), folder(contract.LogKey(d, ulid, "a/b", 1, ulid))},
	}
	allowed := m.value(m.locals["writes"]).AsValueMap()
	require.Len(t, allowed, len(written))
	for name, want := range written {
		got := list(allowed[name].GetAttr("folders"))
		require.ElementsMatch(t, want, got, name)
		role := allowed[name].GetAttr("role").AsString()
		onlyAdds := name == "dispatcher" || name == "archive"
		require.Equal(t, onlyAdds, role == "roles/storage.objectCreator", "%s: accounts may only add to ledger and archive", name)
		service := map[string]string{"archive": "compactor"}[name]
		require.Equal(t, cmp.Or(service, name), allowed[name].GetAttr("service").AsString())
	}
	require.Equal(t, []string{"storage.objects.delete"}, list(m.value(m.blocks["google_project_iam_custom_role.archives"].Body.Attributes["permissions"].Expr)),
		"no right to add or replace objects")
	text, err := os.ReadFile("terraform/storage.tf")
	require.NoError(t, err)
	deletes := string(m.blocks["google_storage_bucket_iam_member.archives"].Body.Range().SliceBytes(text))
	require.Equal(t, 1, strings.Count(deletes, "/objects/"))
	require.Contains(t, deletes, "/objects/"+folder(ledger.Key(d, ulid))+"/", "only ledger entries may be deleted")
	for name, block := range m.blocks {
		if !strings.HasPrefix(name, "google_storage_bucket_iam_member.") {
			continue
		}
		role := block.Body.Attributes["role"].Expr
		text, err := os.ReadFile(role.Range().Filename)
		require.NoError(t, err)
		conditional := slices.ContainsFunc(block.Body.Blocks, func(b *hclsyntax.Block) bool { return b.Type == "condition" })
		if said := string(role.Range().SliceBytes(text)); !conditional {
			require.Contains(t, []string{`"roles/storage.objectViewer"`, `"roles/storage.bucketViewer"`}, said, "%s may write everywhere", name)
		}
	}
}

// A user has rights on the objects of their own tenants only.
func TestUsersHaveRightsOnTheirTenantsOnly(t *testing.T) {
	p := installed(t, map[string]string{"users": `{ "user:jane@acme.example" = ["acme"], "group:ops@acme.example" = ["*"] }`})
	require.Empty(t, p.refused)
	now := ids.AtTime(clock.System{}.Now())
	keys := func(tenant string) (read, added []string) {
		d := ids.Domain{Tenant: tenant, Workspace: "prod"}
		added = []string{
			plan.Ref(d, "x"), ledger.Key(d, now), release.Ref(d, "x"), release.CodeRef(d, "x"), release.SourceRef(d, "x"), backfill.Ref(d, "x"),
		}
		return slices.Concat(added, []string{
			archive.Key(d, now), manifest.Key(d, 1), manifest.StateKey(d, "runs", "l0", now), manifest.HintKey(d), manifest.BoundaryKey(d),
			manifest.PinKey(d, 1), contract.AssetsPrefix(d), contract.LogKey(d, now, "a/b", 1, now),
		}), added
	}
	literal := regexp.MustCompile(`startsWith\("([^"]*)"\)`)
	prefixes := func(resource, instance string) (of []string) {
		const rights = "google_storage_bucket_iam_member."
		block := p.blocks[rights+resource].Body
		each := p.instances(rights + resource)[instance]
		require.NotNil(t, each, instance)
		expression := p.attribute(p.within(block, "condition"), each, "expression").AsString()
		require.LessOrEqual(t, strings.Count(expression, "||"), 12, "the maximum of Cloud IAM")
		for _, m := range literal.FindAllStringSubmatch(expression, -1) {
			of = append(of, strings.TrimPrefix(m[1], "projects/_/buckets/b/objects/"))
		}
		return of
	}
	both := func(resource, instance string) []string {
		return slices.Concat(prefixes(resource, instance), prefixes("users_read_added", instance))
	}
	covers := func(prefixes []string, key string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	}
	for instance, allowed := range map[string]map[string]bool{
		"user:jane@acme.example acme": {"acme": true, "acme-2": false, "globex": false},
		"group:ops@acme.example *":    {"acme": true, "globex": true},
	} {
		for tenant, want := range allowed {
			read, added := keys(tenant)
			for _, key := range read {
				require.Equal(t, want, covers(both("users_read", instance), key), "%s reads %s", instance, key)
				require.Equal(t, want, covers(both("users_list", instance), key), "%s lists %s", instance, key)
				require.Equal(t, want && slices.Contains(added, key), covers(prefixes("users_write", instance), key), "%s adds %s", instance, key)
			}
		}
		require.True(t, covers(prefixes("users_write", instance), wakeup.Prefix))
		require.True(t, covers(prefixes("users_list", instance), wakeup.Prefix), "opening the bucket lists this prefix")
	}
	require.NotEmpty(t, installed(t, map[string]string{"users": `{ "user:x@y.example" = ["a/b"] }`}).refused)
}

func TestIngressIsAsNarrowAsCallersAllow(t *testing.T) {
	p := installed(t, sidecars)
	for name, each := range p.instances(servicesName) {
		want := map[string]string{"sweeper": "INGRESS_TRAFFIC_INTERNAL_ONLY"}[name]
		require.Equal(t, cmp.Or(want, "INGRESS_TRAFFIC_ALL"), p.attribute(p.blocks[servicesName].Body, each, "ingress").AsString(), name)
	}
	for _, each := range p.instances(workersName) {
		require.Equal(t, "INGRESS_TRAFFIC_INTERNAL_ONLY", p.attribute(p.blocks[workersName].Body, each, "ingress").AsString())
	}
	p = installed(t, map[string]string{"services": `{ compactor = { cpu = "2", memory = "4Gi", instances = 3 } }`})
	require.Empty(t, p.refused)
	template := p.within(p.blocks[servicesName].Body, "template")
	each := p.instances(servicesName)["compactor"]
	limits := p.attribute(p.within(template, "containers", "resources"), each, "limits").AsValueMap()
	require.Equal(t, "2", limits["cpu"].AsString())
	require.Equal(t, "4Gi", limits["memory"].AsString())
	instances, _ := p.attribute(p.within(template, "scaling"), each, "max_instance_count").AsBigFloat().Int64()
	require.EqualValues(t, 3, instances)
	require.NotEmpty(t, installed(t, map[string]string{"services": `{ sweeper = { memory = "4GB" } }`}).refused)
}
