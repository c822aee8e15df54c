// Reads a dashboard from its input as Grafana's own schema has it (the Grafana Foundation SDK, which Grafana generates from that
// schema): an unknown or missing field, or a value that is not allowed, ends it with 1 and the path of the field.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(statetimeline.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		var board dashboard.Dashboard
		if err = board.UnmarshalJSONStrict(text); !isError(err) {
			err = board.Validate()
		}
	}
	if isError(err) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// isError says whether there is an error: the SDK also returns lists of errors that are empty.
func isError(err error) bool {
	return err != nil && err.Error() != ""
}
