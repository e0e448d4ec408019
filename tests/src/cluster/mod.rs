//! A real Kubernetes API: kube-apiserver and etcd, started and stopped by the test.

mod process;

pub use process::Process;
