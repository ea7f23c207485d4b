//! The files of a template (`fileMounts`). Their text goes into annotations of the pod, which a volume of the downward API
//! shows as files. So no other object has to be created before the pod or deleted after it.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::template::merge;

/// The key in ClearML's charts.
pub(crate) const KEY: &str = "fileMounts";
const VOLUME: &str = "cantle-files";
const ANNOTATION: &str = "cantle.dev/file";
/// Kubernetes keeps no more in all annotations of an object, with some room for others.
const MOST_BYTES: usize = 240 << 10;

/// One entry.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    name: String,
    folder_path: String,
    file_content: String,
}

/// Replaces a template's `fileMounts` by what pods understand.
///
/// # Errors
/// Says what is wrong with an entry.
pub(crate) fn expand(template: &mut Map<String, Value>) -> Result<(), String> {
    let Some(given) = template.remove(KEY) else { return Ok(()) };
    let files: Vec<File> = serde_json::from_value(given).map_err(|error| {
        format!("{KEY} is a list of entries with name, folderPath and fileContent: {error}")
    })?;
    if files.is_empty() {
        return Ok(());
    }
    let bytes: usize = files.iter().map(|file| file.file_content.len()).sum();
    if bytes > MOST_BYTES {
        return Err(format!(
            "{KEY} has {bytes} bytes of text; {MOST_BYTES} fit into a pod, mount a ConfigMap for more"
        ));
    }
    let (mut annotations, mut items, mut mounts) = (Map::new(), Vec::new(), Vec::new());
    for (at, File { name, folder_path, file_content }) in files.into_iter().enumerate() {
        if name.is_empty() || name.contains('/') || name == ".." || !folder_path.starts_with('/') {
            return Err(format!(
                "{KEY}: {name} in {folder_path} is not a file name in an absolute directory"
            ));
        }
        let (annotation, path) = (format!("{ANNOTATION}-{at}"), at.to_string());
        let field = json!({"fieldPath": format!("metadata.annotations['{annotation}']")});
        items.push(json!({"path": path, "fieldRef": field}));
        let place = format!("{}/{name}", folder_path.trim_end_matches('/'));
        mounts.push(json!({"name": VOLUME, "mountPath": place, "subPath": path, "readOnly": true}));
        annotations.insert(annotation, Value::String(file_content));
    }
    let own = json!({
        "annotations": annotations,
        "volumes": [{"name": VOLUME, "downwardAPI": {"items": items}}],
        "volumeMounts": mounts,
    });
    if let Value::Object(own) = own {
        merge(template, own);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(template: Value) -> Result<Value, String> {
        let Value::Object(mut template) = template else { panic!("a map") };
        expand(&mut template).map(|()| Value::Object(template))
    }

    #[test]
    fn files_go_into_the_pod_itself() {
        let file = json!({"name": "a.py", "folderPath": "/mnt/python/", "fileContent": "print(1)\n"});
        let got = expanded(json!({"volumes": [{"name": "own"}], KEY: [file]})).unwrap();
        let item =
            json!({"path": "0", "fieldRef": {"fieldPath": "metadata.annotations['cantle.dev/file-0']"}});
        let expected = json!({
            "annotations": {"cantle.dev/file-0": "print(1)\n"},
            "volumes": [{"name": "own"}, {"name": VOLUME, "downwardAPI": {"items": [item]}}],
            "volumeMounts": [{"name": VOLUME, "mountPath": "/mnt/python/a.py", "subPath": "0", "readOnly": true}],
        });
        assert_eq!(got, expected);
        assert_eq!(expanded(json!({KEY: []})).unwrap(), json!({}));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let entry = |name: &str, folder: &str, text: &str| {
            expanded(json!({KEY: [{"name": name, "folderPath": folder, "fileContent": text}]})).unwrap_err()
        };
        assert!(entry("a/b", "/mnt", "").contains("a/b in /mnt"));
        assert!(entry("a", "mnt", "").contains("a in mnt"));
        assert!(entry("a", "/mnt", &"x".repeat(MOST_BYTES + 1)).contains("245761 bytes"));
        assert!(expanded(json!({KEY: [{"name": "a"}]})).unwrap_err().contains("folderPath"));
        assert!(
            expanded(json!({KEY: [{"name": "a", "folderPath": "/", "fileContent": "", "mode": 1}]}))
                .unwrap_err()
                .contains("mode")
        );
    }
}
