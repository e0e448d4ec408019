//! Sources and destinations as they are given.

use lb_common::abi::{TCP, UDP};

use super::memory::{Memory, VIP};
use crate::explain::{Client, Destination, NotResolved, Target, resolve};

#[test]
fn addresses_have_ports_and_protocols() {
    let client: Client = "10.1.0.2:40000".parse().unwrap();
    assert_eq!((client.address.to_string().as_str(), client.port), ("10.1.0.2", Some(40_000)));
    assert_eq!("fd00::1".parse::<Client>().unwrap().port, None);
    assert_eq!("[fd00::1]:5".parse::<Client>().unwrap().port, Some(5));
    let to: Destination = "10.96.0.10:53/udp".parse().unwrap();
    assert_eq!(to, Destination { target: Target::Address("10.96.0.10:53".parse().unwrap()), protocol: Some(UDP) });
    assert_eq!("[fd00::1]:80".parse::<Destination>().unwrap().protocol, None);
    for bad in
        ["10.96.0.10", "10.96.0.10:80/quic", "svc/web", "svc//web", "svc/demo/", "svc/demo/web/tcp/more", "web:80"]
    {
        assert!(bad.parse::<Destination>().is_err(), "{bad}");
    }
    for bad in ["web", "10.1.0.2:", "svc/demo/web"] {
        assert!(bad.parse::<Client>().is_err(), "{bad}");
    }
}

#[test]
fn names_of_pods_are_refused_with_the_remedy() {
    let errors = ["pod/demo/web".parse::<Client>().unwrap_err(), "pod/demo/web:80".parse::<Destination>().unwrap_err()];
    assert!(errors.iter().all(|error| error.contains("kubectl get pod -o wide")), "{errors:?}");
}

#[test]
fn a_service_is_found_by_name_and_port() {
    let memory = Memory::serving(1);
    for port in [None, Some("80"), Some("http")] {
        assert_eq!(resolve(&memory, ("demo", "web", port), None), Ok((VIP, 80, TCP)));
    }
    assert_eq!(resolve(&memory, ("demo", "web", Some("81")), None), Err(NotResolved::Unknown("demo/web:81".into())));
    assert!(resolve(&memory, ("demo", "web", None), Some(UDP)).is_err());
    assert!(resolve(&memory, ("other", "web", None), None).is_err());
    let mut memory = memory;
    let (key, service) = memory.services.first_key_value().map(|(key, service)| (*key, *service)).unwrap();
    memory.services.insert(lb_common::abi::ServiceKey { protocol: UDP, ..key }, service);
    let Err(NotResolved::Ambiguous { choices, .. }) = resolve(&memory, ("demo", "web", None), None) else { panic!() };
    assert_eq!(choices, "80/tcp, 80/udp");
}
