//go:build tools

// Package tools pins the programs that the tests run and that have no place in Cargo.lock.
//
// `cargo xtask setup` builds them: a kube-apiserver, the etcd it keeps its objects in, the kube-proxy that Ballast is compared
// with, and kubectl.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
