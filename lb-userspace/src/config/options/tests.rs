//! Flags and file mean the same; what is wrong is named with its place.

use clap::{Args, Command, FromArgMatches};

use super::*;

fn from_flags(flags: &[&str]) -> Options {
    let command = Options::augment_args(Command::new("agent").no_binary_name(true));
    let matches = command.try_get_matches_from(flags).expect("valid flags");
    Options::from_arg_matches(&matches).expect("valid flags")
}

const FLAGS: [&str; 55] = [
    "--source=kube",
    "--kubeconfig=/k",
    "--api-server=https://10.0.0.1:6443,https://10.0.0.2:6443",
    "--tls-server-name=api.example",
    "--node-name=n1",
    "--node-wait=5s",
    "--pod-interfaces=veth*,lxc?",
    "--external-interfaces=eth0",
    "--bpffs=/b",
    "--cgroup-root=/c",
    "--socket-lb=all",
    "--scheduler=maglev",
    "--mode=hybrid",
    "--retry=off",
    "--drain-period=90s",
    "--drain-max=3h",
    "--terminating-max=2h",
    "--adoption-window=1h",
    "--nodeport-addresses=10.0.0.0/8,fd00::/8",
    "--protect-node-ports=off",
    "--cluster-cidr=10.244.0.0/16,fd00:10::/56",
    "--service-cidr=10.96.0.0/12,fd00:96::/112",
    "--snat-addresses=192.0.2.0/24",
    "--snat-ports=61000-61999",
    "--dsr-peers=192.0.2.0/24,2001:db8:1::/64",
    "--external-ips=on",
    "--service-proxy-name=ballast",
    "--flow-timeouts=open=2h,udp-stream=1m",
    "--flow-counters=on",
    "--connect-times=off",
    "--allowed-annotations=scheduler,mode=edge+web",
    "--active-checks=pods,192.0.2.0/24",
    "--check-limits=per-second=10,in-flight=3",
    "--map-sizes=services=100,flows4=2048",
    "--slot-shares=service=1/8,namespace=1/2",
    "--audit-interval=off",
    "--resync-interval=1m",
    "--watch-silence=5s",
    "--healthz-fail-stale=10m",
    "--stuck-after=20s",
    "--behind-after=5s",
    "--first-sync-grace=0s",
    "--run-dir=/r",
    "--metrics-bind=127.0.0.1:1",
    "--health-bind=[::1]:2",
    "--fleet-bind=[::]:1",
    "--fleet-tls-cert=/c",
    "--fleet-tls-key=/k",
    "--tc-attach=clsact",
    "--xdp-mode=generic",
    "--fast-path=on",
    "--log-format=json",
    "--log-level=debug",
    "--program-log-level=trace",
    "--programs=/o",
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
    assert_eq!(settings.health_bind.to_string(), "[::]:10256");
    assert_eq!((settings.scheduler, settings.retry), (lb_model::Scheduler::Random, true));
    assert_eq!(settings.drain_period, Duration::from_secs(30));
    assert_eq!(settings.drain_max, Duration::from_hours(1));
    assert_eq!(settings.terminating_max, Duration::from_hours(1));
    assert_eq!(settings.adoption_window, Duration::from_mins(10));
    assert_eq!(settings.nodeport_addresses, NodePortAddresses::All);
    assert!(!settings.external_ips && settings.service_proxy_name.is_none());
    assert_eq!(settings.map_sizes, MapSizes::default());
    assert_eq!((settings.slot_shares.service, settings.slot_shares.namespace), (16, 4));
    assert_eq!(settings.flow_timeouts.0, lb_common::state::Timeouts::DEFAULT);
    assert!(!settings.flow_counters);
    assert!(settings.connect_times);
    assert_eq!(settings.active_checks, ActiveChecks::Off);
    assert_eq!((settings.check_limits.per_second.get(), settings.check_limits.in_flight.get()), (200, 128));
    assert_eq!(settings.audit_interval, Some(Duration::from_secs(30)));
    assert_eq!(settings.resync_interval, Some(Duration::from_hours(1)));
    assert_eq!(settings.watch_silence, Duration::from_secs(30));
    assert_eq!(settings.node_wait, Duration::from_secs(30));
    assert_eq!(settings.healthz_fail_stale, None);
    assert_eq!(settings.stuck_after, Duration::from_mins(1));
    assert_eq!(settings.behind_after, Duration::from_secs(15));
    assert_eq!(settings.first_sync_grace, Duration::from_mins(1));
    assert_eq!(settings.socket_lb, SocketLb::Host);
    assert_eq!((settings.tc_attach, settings.fast_path), (TcAttach::Auto, FastPath::Auto));
    assert_eq!(settings.program_log_level, LogLevel::Off);
}

/// Tenants of a cluster need the operator's leave for what costs or concerns others; a file is the operator's own.
#[test]
fn what_a_tenant_may_ask_for_by_default_is_the_services_own() {
    use lb_model::AllowedAnnotations;
    let allowed = |flag: &str| from_flags(&[flag]).settle(Some("host")).expect("complete").allowed_annotations;
    assert_eq!(Ok(allowed("--source=kube")), "scheduler,weights,retry,drain-period,drain-max,rate-limit".parse());
    assert_eq!(allowed("--source=file=/m"), AllowedAnnotations::all());
    let strict = from_flags(&["--source=file=/m", "--allowed-annotations=none"]).settle(Some("host"));
    assert_eq!(strict.expect("complete").allowed_annotations, AllowedAnnotations::none());
}

#[test]
fn lists_may_be_yaml_lists() {
    let options = Options::parse("pod-interfaces: [veth*, cali*]\nexternal-interfaces: auto\n").expect("valid");
    assert_eq!(options.pod_interfaces, Some(Interfaces::Named(vec!["veth*".into(), "cali*".into()])));
    assert_eq!(options.external_interfaces, Some(Interfaces::Auto));
    let options = Options::parse("nodeport-addresses: [10.0.0.0/8]\nmap-sizes:\n  services: 64\n").expect("valid");
    assert!(matches!(options.nodeport_addresses, Some(NodePortAddresses::Cidrs(networks)) if networks.len() == 1));
    assert_eq!(options.map_sizes.map(|sizes| sizes.services), Some(64));
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
    assert!(error.contains("0s to 1day") && error.contains("line 1"), "{error}");
    let error = Options::parse("stuck-after: 1s\n").expect_err("too short");
    assert!(error.contains("10s to 10m"), "{error}");
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

#[test]
fn off_is_off_and_not_the_default() {
    let settings = from_flags(&["--source=kube", "--audit-interval=off", "--resync-interval=off"]);
    let settings = settings.settle(Some("host")).expect("complete");
    assert_eq!((settings.audit_interval, settings.resync_interval), (None, None));
}

#[test]
fn the_fleet_is_answered_with_a_certificate_and_an_api_alone() {
    let settle = |flags: &[&str]| from_flags(flags).settle(Some("host"));
    let all = ["--source=kube", "--fleet-bind=[::]:10246", "--fleet-tls-cert=/c", "--fleet-tls-key=/k"];
    assert_eq!(settle(&all).expect("complete").fleet.expect("it is on").bind.port(), 10246);
    assert_eq!(settle(&all[..1]).expect("complete").fleet, None, "it is off by default");
    assert!(matches!(settle(&all[..3]), Err(ConfigError::FleetIncomplete)));
    let error = settle(&["--source=file=/m.yaml", all[1], all[2], all[3]]).expect_err("no API").to_string();
    assert!(error.starts_with("--fleet-bind belongs to --source kube"), "{error}");
}
