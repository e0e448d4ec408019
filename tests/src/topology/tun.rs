//! A wire between two namespaces without link-layer header: two TUN devices and a thread for each direction.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Namespace;

/// Longest packet.
const PACKET: usize = 65_535;
/// How often an idle direction looks whether it shall stop.
const TICK: Duration = Duration::from_millis(1);

/// Carries packets until it is dropped; then the devices vanish.
#[derive(Debug)]
pub struct Wire {
    stop: Arc<AtomicBool>,
    carriers: Vec<JoinHandle<()>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for carrier in self.carriers.drain(..) {
            carrier.join().ok();
        }
    }
}

/// Makes a TUN device of this name in both namespaces, joined with each other.
pub fn join(one: &Namespace, two: &Namespace, name: &str) -> Result<Wire> {
    let (one, two) = (device(one, name)?, device(two, name)?);
    let stop = Arc::new(AtomicBool::new(false));
    let carriers = [(one.try_clone()?, two.try_clone()?), (two, one)]
        .into_iter()
        .map(|(from, to)| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || carry(from, to, &stop))
        })
        .collect();
    Ok(Wire { stop, carriers })
}

fn carry(mut from: File, mut to: File, stop: &AtomicBool) {
    let mut packet = vec![0; PACKET];
    while !stop.load(Ordering::Relaxed) {
        match from.read(&mut packet) {
            // A device that is down takes nothing, as an unplugged cable.
            Ok(length) => {
                to.write_all(&packet[..length]).ok();
            }
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

fn device(namespace: &Namespace, name: &str) -> Result<File> {
    namespace.netns().run(|| {
        let file = File::options().read(true).write(true).open("/dev/net/tun").context("opening /dev/net/tun")?;
        // SAFETY: an all-zero ifreq is valid: plain numbers and a union of them.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        ensure!(name.len() < request.ifr_name.len(), "{name} is too long for a link's name");
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI)?;
        // SAFETY: the descriptor is that of the TUN driver, and the request a whole ifreq that lives across the call.
        let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
        ensure!(answer == 0, "making {name} in {}: {}", namespace.name(), std::io::Error::last_os_error());
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::NONBLOCK)?;
        Ok(file)
    })
}
