//! The programs that the entry programs tail call ([`lb_common::stages::TcStage`]), each for IPv4 and IPv6.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use lb_common::decide;

use crate::tc::{
    decision, dsr, dsr_icmp, fragments, icmp, icmp_error, nat, node_fast_path, refuse, route, slow_path, verdict,
};

macro_rules! stages {
    ($($four:ident, $six:ident: |$skb:ident| $body:expr, $n:ident;)*) => {
        $(
            #[classifier]
            pub fn $four(context: TcContext) -> i32 {
                const $n: usize = 4;
                let $skb = context.skb.skb;
                $body
            }
            #[classifier]
            pub fn $six(context: TcContext) -> i32 {
                const $n: usize = 16;
                let $skb = context.skb.skb;
                $body
            }
        )*
    };
}

stages! {
    parse4, parse6: |skb| slow_path::parse::<N>(skb), N;
    lookup4, lookup6: |skb| slow_path::lookup::<N>(skb), N;
    established4, established6: |skb| decision::run::<N>(skb, decide::established), N;
    handshake4, handshake6: |skb| decision::run::<N>(skb, decide::open), N;
    complete4, complete6: |skb| decision::run::<N>(skb, decide::complete), N;
    retry4, retry6: |skb| decision::run::<N>(skb, decide::retry), N;
    select4, select6: |skb| decision::run::<N>(skb, decide::select), N;
    direct4, direct6: |skb| decision::run::<N>(skb, decide::direct), N;
    allocate4, allocate6: |skb| decision::run::<N>(skb, decision::allocate), N;
    verdict4, verdict6: |skb| verdict::run::<N>(skb), N;
    slow_nat4, slow_nat6: |skb| nat::run_slow::<N>(skb), N;
    route4, route6: |skb| route::run::<N>(skb), N;
    node_fast_path4, node_fast_path6: |skb| node_fast_path::run::<N>(skb), N;
    refuse4, refuse6: |skb| refuse::run::<N>(skb), N;
    icmp_error4, icmp_error6: |skb| icmp_error::run::<N>(skb), N;
    fragment4, fragment6: |skb| fragments::run::<N>(skb), N;
    icmp4, icmp6: |skb| icmp::run::<N>(skb), N;
    icmp_verdict4, icmp_verdict6: |skb| icmp::verdict::<N>(skb), N;
    icmp_nat4, icmp_nat6: |skb| icmp::translate::<N>(skb), N;
    dsr_icmp4, dsr_icmp6: |skb| dsr_icmp::run::<N>(skb), N;
    dsr_icmp_outer4, dsr_icmp_outer6: |skb| dsr_icmp::outer::<N>(skb), N;
    encapsulate4, encapsulate6: |skb| dsr::encapsulate::<N>(skb), N;
    decapsulate4, decapsulate6: |skb| dsr::decapsulate::<N>(skb), N;
    decap_icmp4, decap_icmp6: |skb| dsr_icmp::decapsulate::<N>(skb), N;
}
