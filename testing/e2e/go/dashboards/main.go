// Says what in the dashboards that are its arguments Grafana's schema does not have, by the types that Grafana generates
// from it, and fails where there is something.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var parsed dashboard.Dashboard
	// Fields that are unknown or missing, and values of another type.
	if err := parsed.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
		return err
	}
	// Values out of range.
	if err := parsed.Validate(); err != nil && err.Error() != "" {
		return err
	}
	return nil
}

func main() {
	plugins.RegisterDefaultPlugins()
	failed := len(os.Args) == 1
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}
