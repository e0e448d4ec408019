//! The decision's tables over the kernel's maps.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    BPF_ANY, BPF_NOEXIST, bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1,
    bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2,
};
use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_sk_release, bpf_skc_lookup_tcp};
use lb_common::abi::{Backend, Flow, FlowKey, Service, ServiceKey, Slot, SourceKey, tag};
use lb_common::decide::{NotInserted, Tables};

use crate::maps::{Family, LINKS, SLOTS};

/// The maps, and the context that helpers want.
pub struct Kernel {
    pub context: *mut c_void,
    pub ifindex: u32,
}

impl<const N: usize> Tables<N> for Kernel
where
    Kernel: Family<N>,
{
    type FlowRef = *mut Flow<N>;

    #[inline(always)]
    fn now_ns(&mut self) -> u64 {
        // SAFETY: takes no argument.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn random(&mut self) -> u32 {
        // SAFETY: takes no argument.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn service(&mut self, key: &ServiceKey<N>) -> Option<Service> {
        // SAFETY: copied at once; the seal tells whether the copy is whole and belongs to the key.
        unsafe { <Kernel as Family<N>>::services().get(key) }.copied()
    }

    #[inline(always)]
    fn slot(&mut self, index: u32) -> Option<Slot> {
        let words: *const [u64; 2] = core::ptr::from_ref(SLOTS.get(index)?).cast();
        // SAFETY: a live map value, which is aligned to eight bytes and two words long. Each word is read once and whole: the
        // record tells one of an old range from one of a new range, but not half a word.
        let words = unsafe { [(&raw const (*words)[0]).read_volatile(), (&raw const (*words)[1]).read_volatile()] };
        // SAFETY: plain numbers of the same size, every value of which is valid.
        Some(unsafe { core::mem::transmute::<[u64; 2], Slot>(words) })
    }

    #[inline(always)]
    fn backend(&mut self, id: u32) -> Option<Backend<N>> {
        <Kernel as Family<N>>::backend(id).copied()
    }

    #[inline(always)]
    fn flow(&mut self, key: &FlowKey<N>) -> Option<(Self::FlowRef, Flow<N>)> {
        let entry = <Kernel as Family<N>>::flow(key)?;
        // SAFETY: the verifier knows the pointer as a map value; copied at once, and the tag tells whether it is the key's.
        let flow = unsafe { *entry };
        (flow.tag == tag(key)).then_some((entry, flow))
    }

    #[inline(always)]
    fn touch(&mut self, entry: Self::FlowRef, tag: u32, seen_s: u32, state: u8, flags: u8) {
        // SAFETY: a map value for the whole run of the program; at worst recycled, which the tag shows.
        unsafe {
            if (*entry).tag == tag {
                (*entry).seen_s = seen_s;
                (*entry).state = state;
                (*entry).flags = flags;
            }
        }
    }

    #[inline(always)]
    fn insert_flow(&mut self, key: &FlowKey<N>, flow: &Flow<N>, replace: bool) -> Result<(), NotInserted> {
        let flags = if replace { BPF_ANY } else { BPF_NOEXIST };
        match <Kernel as Family<N>>::insert_flow(key, flow, u64::from(flags)) {
            Ok(()) => Ok(()),
            Err(error) if error == -EEXIST => Err(NotInserted::Exists),
            Err(_) => Err(NotInserted::Full),
        }
    }

    #[inline(always)]
    fn remove_flow(&mut self, key: &FlowKey<N>) {
        <Kernel as Family<N>>::remove_flow(key);
    }

    #[inline(always)]
    fn admitted(&mut self, service: u32, address: &[u8; N]) -> bool {
        <Kernel as Family<N>>::admitted(&SourceKey { service, address: *address })
    }

    #[inline(always)]
    fn direct_connection(&mut self, reply: &FlowKey<N>) -> bool {
        // SAFETY: copied at once; a link's record is replaced as a whole.
        let Some(link) = (unsafe { LINKS.get(self.ifindex) }).copied() else { return false };
        if link.peer_netns_id < 0 {
            return false;
        }
        holds_connection(self.context, reply, link.peer_netns_id as u32)
    }
}

const EEXIST: i32 = 17;

/// Whether the namespace holds a live TCP socket that receives packets of this tuple. Since Linux 5.2 (`bpf_skc_lookup_tcp`).
#[inline(always)]
fn holds_connection<const N: usize>(context: *mut c_void, key: &FlowKey<N>, netns_id: u32) -> bool {
    let mut tuple = if N == 4 {
        bpf_sock_tuple {
            __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 {
                ipv4: bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 {
                    saddr: word(&key.src, 0),
                    daddr: word(&key.dst, 0),
                    sport: key.src_port.to_be(),
                    dport: key.dst_port.to_be(),
                },
            },
        }
    } else {
        bpf_sock_tuple {
            __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 {
                ipv6: bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 {
                    saddr: [word(&key.src, 0), word(&key.src, 4), word(&key.src, 8), word(&key.src, 12)],
                    daddr: [word(&key.dst, 0), word(&key.dst, 4), word(&key.dst, 8), word(&key.dst, 12)],
                    sport: key.src_port.to_be(),
                    dport: key.dst_port.to_be(),
                },
            },
        }
    };
    let size = 2 * N as u32 + 4;
    // SAFETY: the tuple lives on the stack, `size` is that of its family, and the socket is released below.
    unsafe {
        let socket = bpf_skc_lookup_tcp(context, &mut tuple, size, u64::from(netns_id), 0);
        if socket.is_null() {
            return false;
        }
        let state = (*socket).state;
        bpf_sk_release(socket.cast());
        // Listeners, TIME_WAIT and closed sockets hold no connection (numbers of include/net/tcp_states.h).
        const TIME_WAIT: u32 = 6;
        const CLOSE: u32 = 7;
        const LISTEN: u32 = 10;
        state != TIME_WAIT && state != CLOSE && state != LISTEN
    }
}

#[inline(always)]
fn word<const N: usize>(address: &[u8; N], at: usize) -> u32 {
    if at + 4 > N {
        return 0;
    }
    u32::from_ne_bytes([address[at], address[at + 1], address[at + 2], address[at + 3]])
}
