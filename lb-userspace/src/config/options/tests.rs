//! Flags and file mean the same; what is wrong is named with its place.

use clap::{Args, Command, FromArgMatches};

use super::*;

fn from_flags(flags: &[&str]) -> Options {
    let command = Options::augment_args(Command::new("agent").no_binary_name(true));
    let matches = command.try_get_matches_from(flags).expect("valid flags");
    Options::from_arg_matches(&matches).expect("valid flags")
}

const FLAGS: [&str; 18] = [
    "--source=kube",
    "--kubeconfig=/k",
    "--api-server=https://10.0.0.1:6443",
    "--node-name=n1",
    "--pod-interfaces=veth*,lxc?",
    "--external-interfaces=eth0",
    "--bpffs=/b",
    "--cgroup-root=/c",
    "--socket-lb=all",
    "--drain-period=90s",
    "--run-dir=/r",
    "--metrics-bind=127.0.0.1:1",
    "--health-bind=[::1]:2",
    "--tc-attach=clsact",
    "--xdp-mode=generic",
    "--log-format=json",
    "--log-level=debug",
    "--program-log-level=trace",
];

#[test]
fn every_flag_has_the_same_name_and_meaning_in_the_file() {
    let yaml: String = FLAGS.iter().map(|flag| flag.trim_start_matches("--").replacen('=', ": '", 1) + "'\n").collect();
    assert_eq!(Options::parse(&yaml).expect("valid"), from_flags(&FLAGS));

    let command = Options::augment_args(Command::new("agent"));
    let names: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
    let tested: Vec<_> = FLAGS.iter().map(|flag| &flag[2..flag.find('=').expect("a value")]).collect();
    assert_eq!(names, tested, "a new flag belongs into this test");
}

#[test]
fn flags_win_over_the_file() {
    let file = Options::parse("source: kube\nsocket-lb: off\ndrain-period: 5m\n").expect("valid");
    let settings = from_flags(&["--drain-period=1s"]).or(file).settle(Some("host")).expect("complete");
    assert_eq!(settings.source, Source::Kube);
    assert_eq!(settings.socket_lb, SocketLb::Off);
    assert_eq!(settings.drain_period, Duration::from_secs(1));
    assert_eq!(settings.node_name, "host");
}

#[test]
fn merging_loses_no_option() {
    let all = from_flags(&FLAGS);
    assert_eq!(Options::default().or(all.clone()), all);
    assert_eq!(all.clone().or(Options::default()), all);
}

#[test]
fn defaults_are_the_documented_ones() {
    let settings = from_flags(&["--source=file=/m.yaml"]).settle(Some("host")).expect("complete");
    assert_eq!(settings.bpffs, Path::new("/sys/fs/bpf"));
    assert_eq!(settings.run_dir, Path::new("/run/ballast"));
    assert_eq!(settings.metrics_bind.to_string(), "127.0.0.1:10249");
    assert_eq!(settings.health_bind.to_string(), "0.0.0.0:10256");
    assert_eq!(settings.drain_period, Duration::from_secs(30));
    assert_eq!(settings.socket_lb, SocketLb::Host);
    assert_eq!(settings.tc_attach, TcAttach::Auto);
    assert_eq!(settings.program_log_level, LogLevel::Off);
}

#[test]
fn lists_may_be_yaml_lists() {
    let options = Options::parse("pod-interfaces: [veth*, cali*]\nexternal-interfaces: auto\n").expect("valid");
    assert_eq!(options.pod_interfaces, Some(Interfaces::Named(vec!["veth*".into(), "cali*".into()])));
    assert_eq!(options.external_interfaces, Some(Interfaces::Auto));
}

#[test]
fn empty_file_sets_nothing() {
    assert_eq!(Options::parse("").expect("valid"), Options::default());
    assert_eq!(Options::parse("# nothing\n").expect("valid"), Options::default());
}

#[test]
fn unknown_key_is_refused_with_its_place() {
    let error = Options::parse("source: kube\nsocketlb: off\n").expect_err("unknown key");
    assert!(error.contains("socketlb") && error.contains("line 2") && error.contains("column 1"), "{error}");
}

#[test]
fn bad_value_is_refused_with_its_place() {
    let error = Options::parse("source: kube\nsocket-lb: some\n").expect_err("bad value");
    assert!(error.contains("host, all or off") && error.contains("line 2"), "{error}");
    let error = Options::parse("drain-period: 25h\n").expect_err("too long");
    assert!(error.contains("at most 24h") && error.contains("line 1"), "{error}");
    let error = Options::parse("pod-interfaces: auto,veth0\n").expect_err("contradiction");
    assert!(error.contains("auto alone"), "{error}");
}

#[test]
fn source_is_required_and_kube_flags_need_kube() {
    let error = Options::default().settle(Some("host")).expect_err("no source");
    assert!(error.to_string().contains("--source file=PATH"), "{error}");
    let error =
        from_flags(&["--source=file=/m", "--kubeconfig=/k"]).settle(Some("host")).expect_err("kubeconfig with a file");
    assert!(error.to_string().contains("--kubeconfig"), "{error}");
    assert!(matches!(from_flags(&["--source=kube"]).settle(None), Err(ConfigError::NoNodeName)));
}
