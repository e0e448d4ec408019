//go:build tools

// Package tools pins promtool, which checks the names and labels of our metrics. It is a module of its own: Prometheus needs
// other versions of the Kubernetes modules than the programs beside it.
package tools

import _ "github.com/prometheus/prometheus/cmd/promtool"
