//! The programs that the XDP program tail calls ([`lb_common::stages::XdpStage`]), each for IPv4 and IPv6.

use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use lb_common::decide;

use crate::xdp::{decapsulate, decision, encapsulate, route, verdict};

macro_rules! stages {
    ($($four:ident, $six:ident: |$context:ident| $body:expr, $n:ident;)*) => {
        $(
            #[xdp]
            pub fn $four(context: XdpContext) -> u32 {
                const $n: usize = 4;
                let $context = context.ctx;
                $body
            }
            #[xdp]
            pub fn $six(context: XdpContext) -> u32 {
                const $n: usize = 16;
                let $context = context.ctx;
                $body
            }
        )*
    };
}

stages! {
    xdp_establ4, xdp_establ6: |context| decision::run::<N>(context, decide::established), N;
    xdp_handshake4, xdp_handshake6: |context| decision::run::<N>(context, decide::open), N;
    xdp_complete4, xdp_complete6: |context| decision::run::<N>(context, decide::complete), N;
    xdp_select4, xdp_select6: |context| decision::run::<N>(context, decide::select), N;
    xdp_allocate4, xdp_allocate6: |context| decision::run::<N>(context, decide::allocate), N;
    xdp_verdict4, xdp_verdict6: |context| verdict::run::<N>(context), N;
    xdp_route4, xdp_route6: |context| route::run::<N>(context), N;
    xdp_encap4, xdp_encap6: |context| encapsulate::encapsulate::<N>(context), N;
    xdp_decap4, xdp_decap6: |context| decapsulate::decapsulate::<N>(context), N;
}
