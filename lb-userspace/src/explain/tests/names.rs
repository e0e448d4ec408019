//! Sources and destinations as they are given.

use lb_common::abi::{TCP, UDP};

use super::memory::{Memory, VIP};
use crate::explain::pod::{NoAddress, PodName, check, names, replace};
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

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn pods_have_names_instead_of_addresses() {
    for good in ["pod/demo/client", "pod/demo/client:40000", "10.1.0.2"] {
        assert_eq!(check::<Client>(good), Ok(good.to_owned()));
    }
    for good in ["pod/demo/web-0:80", "pod/demo/web-0:53/udp", "svc/demo/web"] {
        assert_eq!(check::<Destination>(good), Ok(good.to_owned()));
    }
    for bad in ["pod/web", "pod//web:80", "pod/demo/:80", "pod/demo/web", "pod/demo/web:http", "pod/demo/web:80/quic"] {
        assert!(check::<Destination>(bad).is_err(), "{bad}");
    }
}

#[test]
fn both_ends_get_addresses_of_one_family() {
    let pod = |text: &str| PodName::find(text).unwrap().unwrap();
    let of = |all: [&str; 2]| all.iter().map(|address| address.parse().unwrap()).collect::<Vec<_>>();
    let addresses = [
        (pod("pod/demo/client"), of(["10.1.0.2", "fd00::2"])),
        (pod("pod/demo/web:80/tcp"), of(["fd00::3", "10.1.0.3"])),
        (pod("pod/demo/four:80"), vec!["10.1.0.4".parse().unwrap()]),
        (pod("pod/demo/ended:80"), vec![]),
    ];
    let addresses = addresses.into_iter().collect();
    for (asked, expected) in [
        ("pod/demo/client svc/demo/web -o json", "10.1.0.2 svc/demo/web -o json"),
        ("--hook pod_in pod/demo/client pod/demo/web:80/tcp", "--hook pod_in 10.1.0.2 10.1.0.3:80/tcp"),
        ("pod/demo/client [fd00::9]:80", "fd00::2 [fd00::9]:80"),
        ("fd00::9 pod/demo/web:80/tcp", "fd00::9 [fd00::3]:80/tcp"),
        ("10.9.9.9:5 10.96.0.10:80", "10.9.9.9:5 10.96.0.10:80"),
    ] {
        assert_eq!(replace(&words(asked), &addresses), Ok(words(expected)), "{asked}");
    }
    assert_eq!(replace(&words("fd00::9 pod/demo/four:80"), &addresses), Err(NoAddress::Family));
    let ended = replace(&words("10.1.0.2 pod/demo/ended:80"), &addresses);
    assert_eq!(ended, Err(NoAddress::None("demo/ended".to_owned())));
    assert_eq!(names(&words("pod/demo/client svc/demo/web")), Ok(vec![pod("pod/demo/client")]));
}

#[test]
fn a_service_is_found_by_name_and_port() {
    let memory = Memory::serving(1);
    for port in [None, Some("80"), Some("http")] {
        assert_eq!(resolve::<4, _>(&memory, ("demo", "web", port), None), Ok((VIP, 80, TCP)));
    }
    assert_eq!(
        resolve::<4, _>(&memory, ("demo", "web", Some("81")), None),
        Err(NotResolved::Unknown("demo/web:81".into()))
    );
    assert!(resolve::<4, _>(&memory, ("demo", "web", None), Some(UDP)).is_err());
    assert!(resolve::<4, _>(&memory, ("other", "web", None), None).is_err());
    let mut memory = memory;
    let (key, service) = memory.services.first_key_value().map(|(key, service)| (*key, *service)).unwrap();
    memory.services.insert(lb_common::abi::ServiceKey { protocol: UDP, ..key }, service);
    let Err(NotResolved::Ambiguous { choices, .. }) = resolve::<4, _>(&memory, ("demo", "web", None), None) else {
        panic!()
    };
    assert_eq!(choices, "80/tcp, 80/udp");
}
