//! An OCI image layout in a tar file: one layer with one program. The same input gives the same bytes.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder, read::GzDecoder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Name of the program in the image's root.
const PROGRAM: &str = "ballast";
/// Every time in the image: the same for every build.
const CREATED: &str = "1970-01-01T00:00:00Z";

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// What the image is made of.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The static binary.
    pub program: &'a [u8],
    /// Its architecture, as images name it (`amd64`).
    pub architecture: &'a str,
    pub version: &'a str,
    /// The commit that it was built from.
    pub revision: &'a str,
    /// Name and tag for imports.
    pub name: &'a str,
}

/// The image, packed.
#[derive(Debug)]
pub struct Packed {
    /// The tar file.
    pub archive: Vec<u8>,
    /// Its layer, compressed, as it stands in the archive.
    pub layer: Vec<u8>,
    /// Digest of the manifest: what `image@sha256:…` means.
    pub digest: String,
}

/// Packs the image.
pub fn pack(image: &Image<'_>) -> Result<Packed> {
    let tree = tar_file(&[(PROGRAM.to_owned(), 0o755, image.program)])?;
    let layer = compress(&tree)?;
    let config = serde_json::to_vec(&config(image, &digest(&tree)))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, &config),
        "layers": [descriptor(LAYER_TYPE, &layer)],
    }))?;
    let index = serde_json::to_vec(&index(image, &manifest))?;
    let layout = serde_json::to_vec(&json!({"imageLayoutVersion": "1.0.0"}))?;

    let mut files = vec![("index.json".to_owned(), 0o644, &index[..]), ("oci-layout".to_owned(), 0o644, &layout[..])];
    for blob in [&config, &layer, &manifest] {
        files.push((format!("blobs/sha256/{}", hex(blob)), 0o644, blob));
    }
    files.sort();
    Ok(Packed { archive: tar_file(&files)?, digest: digest(&manifest), layer })
}

/// The program in a compressed layer.
pub fn program_of(layer: &[u8]) -> Result<Vec<u8>> {
    let mut tar = tar::Archive::new(GzDecoder::new(layer));
    let mut program = Vec::new();
    let mut entry = tar.entries()?.next().context("the layer is empty")??;
    entry.read_to_end(&mut program)?;
    Ok(program)
}

fn config(image: &Image<'_>, tree_digest: &str) -> Value {
    json!({
        "architecture": image.architecture,
        "os": "linux",
        "created": CREATED,
        "config": {
            "Entrypoint": [format!("/{PROGRAM}")],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.title": "Ballast",
                "org.opencontainers.image.description": "eBPF service load balancer for Linux and Kubernetes",
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                "org.opencontainers.image.version": image.version,
                "org.opencontainers.image.revision": image.revision,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [tree_digest]},
        "history": [{"created": CREATED, "created_by": "cargo xtask image"}],
    })
}

fn index(image: &Image<'_>, manifest: &[u8]) -> Value {
    let mut entry = descriptor(MANIFEST_TYPE, manifest);
    entry["platform"] = json!({"architecture": image.architecture, "os": "linux"});
    entry["annotations"] = json!({
        // What containerd, and what everybody else names the image by.
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.version,
    });
    json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]})
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(blob), "size": blob.len()})
}

/// A tar file of (path, mode, contents), owned by root, without times.
fn tar_file(files: &[(String, u32, &[u8])]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, contents) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(contents.len().try_into()?);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        tar.append_data(&mut header, path, *contents).with_context(|| format!("cannot pack {path}"))?;
    }
    Ok(tar.into_inner()?)
}

fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    // No name and no time in the header.
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const IMAGE: Image<'_> = Image {
        program: b"\x7fELF, nearly",
        architecture: "amd64",
        version: "1.2.3",
        revision: "abc",
        name: "docker.io/library/ballast:1.2.3",
    };

    /// The files of an archive, as somebody else reads them.
    fn unpack(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().expect("a tar file") {
            let mut entry = entry.expect("an entry");
            assert_eq!((entry.header().mtime().expect("a time"), entry.header().uid().expect("a user")), (0, 0));
            let path = entry.path().expect("a path").to_str().expect("text").to_owned();
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).expect("its contents");
            files.insert(path, contents);
        }
        files
    }

    /// The blob that a descriptor points at; its size and digest are what the descriptor says.
    fn follow<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
        let named = descriptor["digest"].as_str().expect("a digest").strip_prefix("sha256:").expect("SHA-256");
        let blob = &files[&format!("blobs/sha256/{named}")];
        assert_eq!(descriptor["size"], blob.len());
        assert_eq!(named, hex(blob));
        blob
    }

    fn parse(json: &[u8]) -> Value {
        serde_json::from_slice(json).expect("JSON")
    }

    #[test]
    fn every_digest_leads_to_what_it_names() {
        let packed = pack(&IMAGE).expect("packs");
        let files = unpack(&packed.archive);
        assert_eq!(files.len(), 5, "layout, index, manifest, config, layer: {:?}", files.keys());
        assert_eq!(parse(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");

        let index = parse(&files["index.json"]);
        let entry = &index["manifests"][0];
        assert_eq!(entry["digest"], packed.digest);
        assert_eq!(entry["annotations"]["io.containerd.image.name"], IMAGE.name);
        let manifest = parse(follow(&files, entry));
        let config = parse(follow(&files, &manifest["config"]));
        let layer = follow(&files, &manifest["layers"][0]);

        let mut tree = Vec::new();
        GzDecoder::new(layer).read_to_end(&mut tree).expect("gzip");
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(&tree)]));
        let contents = unpack(&tree);
        assert_eq!(contents.keys().collect::<Vec<_>>(), ["ballast"]);
        assert_eq!(contents["ballast"], IMAGE.program);
        assert_eq!(program_of(layer).expect("a program"), IMAGE.program);
    }

    #[test]
    fn the_entry_point_is_an_executable_of_the_layer() {
        let packed = pack(&IMAGE).expect("packs");
        let files = unpack(&packed.archive);
        let manifest = parse(follow(&files, &parse(&files["index.json"])["manifests"][0]));
        let config = parse(follow(&files, &manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/ballast"]));
        let mut tar = tar::Archive::new(GzDecoder::new(&packed.layer[..]));
        let entry = tar.entries().expect("a tar file").next().expect("one entry").expect("readable");
        assert_eq!(entry.header().mode().expect("a mode"), 0o755);
    }

    #[test]
    fn the_same_binary_gives_the_same_archive() {
        assert_eq!(pack(&IMAGE).expect("packs").archive, pack(&IMAGE).expect("packs").archive);
        let other = pack(&Image { program: b"another", ..IMAGE }).expect("packs");
        assert_ne!(other.digest, pack(&IMAGE).expect("packs").digest);
    }
}
