//! The agent against a real API server: objects are made, scaled and deleted, and traffic follows.

use anyhow::Result;
use lb_tests::cluster::ApiServer;

#[tokio::test]
async fn starts() -> Result<()> {
    let t = std::time::Instant::now();
    let mut server = ApiServer::start().await?;
    eprintln!("started {:?}", t.elapsed());
    let t = std::time::Instant::now();
    server.restart().await?;
    eprintln!("restarted {:?}\n{}", t.elapsed(), server.log());
    Ok(())
}
