// Command protoc-gen-servo is a plugin of protoc and buf. The option `out` selects its output: the TypeScript types of
// the API, its OpenAPI document, or its reference page.
package main

import (
	"fmt"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	var out string
	options := protogen.Options{ParamFunc: func(name, value string) error {
		if name != "out" {
			return fmt.Errorf(`unknown option %q: the only option is "out"`, name)
		}
		out = value
		return nil
	}}
	options.Run(func(p *protogen.Plugin) error {
		p.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		api, err := read(p)
		if err != nil {
			return err
		}
		switch out {
		case "typescript":
			_, err = p.NewGeneratedFile("types.ts", "").Write([]byte(typescript(api)))
		case "markdown":
			_, err = p.NewGeneratedFile("api.md", "").Write([]byte(markdown(api)))
		case "openapi":
			var doc []byte
			if doc, err = openapi(api); err == nil {
				_, err = p.NewGeneratedFile("openapi.json", "").Write(doc)
			}
		default:
			err = fmt.Errorf("unknown output %q: choose from typescript, openapi, markdown", out)
		}
		return err
	})
}
