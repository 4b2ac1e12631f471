//! Proxies in the environment are not used. The test is alone in its process, because it changes the environment.

use xdb_http_tests::rig::{Rig, answer};
use xdb_http_tests::stub::{Stub, closed_port};

#[test]
fn proxies_of_the_environment_are_not_used() {
    let proxy = format!("http://{}", closed_port());
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"] {
        // SAFETY: no other thread runs in this process as yet.
        unsafe { std::env::set_var(name, &proxy) };
    }
    let stub = Stub::answering(200, "{}");
    assert_eq!(Rig::new(1).get(stub.url("/")), answer(200, "{}"));
}
