//! What each annotation may say, and that a bad one takes nothing else along.

use super::*;
use lb_model::{Mode, Scheduler};

fn read_all(annotations: &[(&str, &str)]) -> (ServiceOptions, Vec<String>) {
    let given: BTreeMap<String, String> =
        annotations.iter().map(|(name, text)| (format!("{PREFIX}{name}"), (*text).to_owned())).collect();
    let mut problems = Vec::new();
    let options = read(&given, &mut |problem| problems.push(format!("{}; {}", problem.reason, problem.remedy)));
    (options.map(|options| *options).unwrap_or_default(), problems)
}

#[test]
fn a_service_without_our_annotations_has_no_options() {
    let others = BTreeMap::from([("a.example/scheduler".to_owned(), "x".to_owned()), ("c".to_owned(), String::new())]);
    for annotations in [&others, &BTreeMap::new()] {
        assert_eq!(read(annotations, &mut |problem| panic!("{}", problem.reason)), None);
    }
}

#[test]
fn every_annotation_is_read() {
    let (options, problems) = read_all(&[
        ("scheduler", "maglev"),
        ("mode", "hybrid"),
        ("weights", "10.0.0.1=3, zone:eu-1=2,2001:db8::1 = 1000"),
        ("maglev-size", "1021"),
        ("drain-period", "1m 30s"),
        ("drain-max", "2h"),
        ("retry", "off"),
        ("rate-limit", "100 / 500"),
        ("check", "http"),
        ("check-port", "8081"),
        ("check-path", "/ready?deep=1"),
        ("check-interval", "2s"),
        ("check-timeout", "500ms"),
        ("check-failures", "4"),
        ("check-successes", "1"),
    ]);
    assert_eq!(problems, Vec::<String>::new());
    let weight = |address: &str, weight| (Weighed::Address(address.parse().unwrap()), weight);
    let check = Check {
        method: CheckMethod::Http { path: "/ready?deep=1".into() },
        port: Some(8081),
        interval: Duration::from_secs(2),
        timeout: Duration::from_millis(500),
        failures: 4,
        successes: 1,
    };
    let wanted = ServiceOptions {
        scheduler: Some(Scheduler::Maglev),
        mode: Some(Mode::Hybrid),
        weights: vec![weight("10.0.0.1", 3), weight("2001:db8::1", 1000), (Weighed::Zone("eu-1".into()), 2)],
        maglev_size: Some(1021),
        drain_period: Some(Duration::from_secs(90)),
        drain_max: Some(Duration::from_hours(2)),
        retry: Some(false),
        check: Some(check),
        rate_limit: Some(RateLimit { rate: 100, burst: 500 }),
    };
    assert_eq!(options, wanted);
}

#[test]
fn as_many_flows_may_come_at_once_as_in_a_second_if_nothing_else_is_said() {
    assert_eq!(read_all(&[("rate-limit", "40")]).0.rate_limit, Some(RateLimit { rate: 40, burst: 40 }));
}

#[test]
fn a_check_that_says_no_more_has_the_defaults() {
    let (options, problems) = read_all(&[("check", "tcp")]);
    assert_eq!(problems, Vec::<String>::new());
    let wanted = Check {
        method: CheckMethod::Tcp,
        port: None,
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        failures: 3,
        successes: 2,
    };
    assert_eq!(options.check, Some(wanted));
    assert_eq!(read_all(&[("check", "off")]).0.check, None);
    let path = read_all(&[("check", "http")]).0.check.map(|check| check.method);
    assert_eq!(path, Some(CheckMethod::Http { path: "/".into() }));
}

/// Each bad value: its annotation, what was expected, and that the good ones beside it hold.
#[test]
fn a_bad_value_degrades_its_own_option_alone() {
    for (name, text, expected) in [
        ("scheduler", "fastest", "there are random, round-robin"),
        ("maglev-size", "65537", "expected 251, 1021, 16381 or 131071"),
        ("drain-period", "25h", "0s to 1day"),
        ("drain-max", "25h", "0s to 1day"),
        ("drain-period", "-1s", "a duration like 30s"),
        ("weights", "10.0.0.1", "expected an address or zone:NAME"),
        ("weights", "10.0.0.1=0", "1 to 1000"),
        ("weights", "10.0.0.1=1001", "1 to 1000"),
        ("weights", "zone:=1", "zone:NAME"),
        ("weights", "a.example=1", "an address"),
        ("rate-limit", "0", "each 1 to 1000000"),
        ("rate-limit", "10/0", "each 1 to 1000000"),
        ("rate-limit", "1000001", "new flows per second"),
        ("rate-limit", "10/s", "how many at once"),
        ("check", "ping", "expected tcp, http or off"),
        ("check-port", "65536", "from 1 to 65535"),
        ("check-path", "ready", "begins with /"),
        ("check-path", "/a b", "visible ASCII"),
        ("check-interval", "10ms", "1s to 1h"),
        ("check-timeout", "2m", "100ms to 1m"),
        ("check-failures", "0", "from 1 to 100"),
        ("check-successes", "101", "from 1 to 100"),
        ("schedular", "maglev", "there is none of this name"),
    ] {
        let mut given = vec![("check", "tcp"), ("retry", "off")];
        given.retain(|(known, _)| *known != name);
        given.push((name, text));
        let (options, problems) = read_all(&given);
        assert_eq!(problems.len(), 1, "{name}={text}: {problems:?}");
        assert!(problems[0].starts_with(&format!("annotation ballast.dev/{name}: ")), "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?}");
        assert_eq!(options.retry, Some(false), "{name}={text}");
        assert_eq!((options.scheduler, options.maglev_size, options.drain_period), (None, None, None));
        assert_eq!(options.weights, Vec::new());
    }
    assert_eq!(read_all(&[("retry", "yes")]).0.retry, None);
}

#[test]
fn a_bad_weight_leaves_the_others() {
    let (options, problems) = read_all(&[("weights", "10.0.0.1=3, 10.0.0.2=x, 10.0.0.1=4,")]);
    assert_eq!(options.weights, [(Weighed::Address([10, 0, 0, 1].into()), 3)]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[1].contains("weighed before"), "{problems:?}");
    let many: Vec<String> = (0..=WEIGHTS_MAX).map(|zone| format!("zone:z{zone}=1")).collect();
    let (options, problems) = read_all(&[("weights", &many.join(","))]);
    assert_eq!((options.weights.len(), problems.len()), (WEIGHTS_MAX, 1));
}

/// Asking another port or path than was meant would condemn backends that are well.
#[test]
fn a_check_with_a_bad_question_is_none_and_one_with_a_bad_pace_has_the_default() {
    assert_eq!(read_all(&[("check", "tcp"), ("check-port", "http")]).0.check, None);
    assert_eq!(read_all(&[("check", "http"), ("check-path", "x")]).0.check, None);
    let (options, _) = read_all(&[("check", "tcp"), ("check-interval", "often")]);
    assert_eq!(options.check.map(|check| check.interval), Some(Duration::from_secs(5)));
    let (options, problems) = read_all(&[("check", "tcp"), ("check-interval", "2s"), ("check-timeout", "3s")]);
    assert_eq!(options.check.map(|check| check.timeout), Some(Duration::from_secs(2)));
    assert!(problems[0].contains("longer than the interval, 2s"), "{problems:?}");
}

#[test]
fn details_without_a_check_are_told() {
    let (options, problems) = read_all(&[("check-port", "80"), ("check-interval", "1s")]);
    assert_eq!(options.check, None);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("add the annotation ballast.dev/check"), "{problems:?}");
    let (_, problems) = read_all(&[("check", "tcp"), ("check-path", "/")]);
    assert!(problems[0].contains("a check by tcp has no path"), "{problems:?}");
}

#[test]
fn a_long_value_is_not_repeated() {
    let (_, problems) = read_all(&[("retry", &"x".repeat(200_000))]);
    assert!(problems[0].len() < 300, "{}", problems[0].len());
}
