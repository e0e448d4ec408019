//! The binary `ballast`: agent and command line in one.

fn main() -> std::process::ExitCode {
    lb_userspace::cli::main()
}
