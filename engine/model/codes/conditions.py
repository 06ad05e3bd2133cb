"""Codes of conditions (``reason``), beside those of the source."""

from __future__ import annotations

from typing import Final

from belay.engine.model.codes.rows import ExplainedCode as Row

_STATUS: Final = "status.md"

CONDITIONS: Final = {
    "Everything": Row("All declared objects are in force.", "", "", _STATUS),
    "ExceptRefused": Row(
        "What can be used of the revision is in force; of the rest, what was declared before.",
        "A document has an error.",
        "belay status lists the findings; correct them and push.",
        _STATUS,
    ),
    "RefusedByServer": Row(
        "The API server refuses an object, so not everything is in force.",
        "A field that its definition or an admission policy forbids, or a right that Belay lacks.",
        "belay status names the object and the server's words.",
        _STATUS,
    ),
    "HeldBack": Row(
        "Objects wait for a safety budget, a maintenance window or a person.",
        "",
        "belay status says for which and until when.",
        "concepts/budget.md",
    ),
    "Applying": Row("Objects are on their way.", "", "Wait: belay wait revision.", _STATUS),
    "WaitsForConfirmation": Row(
        "Deletions wait for a person, as they are more than the safety budget lets go at once.",
        "A folder or branch vanished, or many documents were removed on purpose.",
        "belay confirm DIGEST lets exactly these be done; belay rollback restores the documents.",
        "acts.md",
    ),
    "BadDocuments": Row(
        "Documents of the newest revision have errors; their last good versions stay in force.",
        "",
        "belay validate on a clone shows each at file:line:column.",
        _STATUS,
    ),
    "Findings": Row("Not ready, because documents have errors.", "", "See BadDocuments.", _STATUS),
    "NoSource": Row("No repository is named.", "", "Create a Source, or set BELAY_SOURCE.", "installing.md"),
    "SourceUnknown": Row("What the source says has not been read yet.", "", "Wait for the controller's first fetch."),
    "NoPass": Row(
        "No pass has said anything for too long, so the state is not known.",
        "The controller or worker is down, or cannot reach Redis or the API server.",
        "belay status and the controller's log say which; nothing is evicted meanwhile.",
        "runbooks.md",
    ),
    "NotReached": Row("An earlier step failed, so this one was not tried.", "", "Mend the earlier one.", _STATUS),
    "Succeeded": Row("The step was done.", "", "", _STATUS),
    "Suspended": Row(
        "A source takes nothing new, or a pool's nodes are left as they are.", "spec.suspend is set.",
        "Set spec.suspend to false.",
    ),
    "ForcePushed": Row(
        "The branch was rewritten; its new commit was accepted.", "git push --force.",
        "Look whether that was meant; branch protection forbids it.", "signed.md",
    ),
    "Signed": Row("Orders to agents are signed.", "", "", "signed.md"),
    # of Belay's own kinds
    "InForce": Row("What the object says is in force.", "", "", _STATUS),
    "Refused": Row(
        "A newer version of the document cannot be used, so this one stays in force.",
        "It has an error.",
        "belay status lists the findings; correct them and push.",
        _STATUS,
    ),
    "Error": Row("What the object says cannot be done.", "", "The condition's message says what is wrong.", _STATUS),
    "NotFromGit": Row(
        "The object has no effect: it was made in the cluster, and documents of its kind come from Git.",
        "kubectl apply by hand, or another tool.",
        "Commit it to the repository, or name its kind in SchedulingSettings.spec.clusterDocuments.",
        "gitops-tools.md",
    ),
    "NotDeclared": Row(
        "The object came from Git, which no longer declares it.", "Its deletion is held or failed.",
        "Delete it, or declare it again.", _STATUS,
    ),
    "Counts": Row("The object was made in the cluster, and its kind may be.", "", "", "gitops-tools.md"),
    "NoNodes": Row("No node has the labels of the pool's spec.selector.", "", "Label nodes, or mend the selector.",
                   "concepts/node-pool.md"),
    "Expired": Row("The isolation has ended.", "Its time is over.", "Remove the document.", "concepts/isolation.md"),
    "Shadow": Row(
        "The policy only reports what it would change.", "spec.mode is shadow.",
        "belay policy edit NAME --mode enforce puts it in force.", "concepts/fault-policy.md",
    ),
    "NotCut": Row(
        "Chips of the layout are not cut yet.", "Something still uses them.",
        "belay get vnpus shows what; a chip is cut when its last pod has gone.", "concepts/vnpu-layout.md",
    ),
    "Linked": Row("All links are up.", "", "", "kv-links.md"),
    "NotLinked": Row("Some links are not up.", "", "belay explain link NAME says which, and why.", "kv-links.md"),
    "Unsigned": Row("Orders to agents are not signed. A choice, no fault.", "", "belay keys makes a key.", "signed.md"),
}  # fmt: skip

TYPES: Final = {
    "Fetched": Row("Whether the repository was reached and its branch read.", "", "", _STATUS),
    "Verified": Row("Whether the commit's signature is one that is trusted.", "", "", "signed.md"),
    "Accepted": Row("Whether the fetched commit may come into force.", "", "", _STATUS),
    "Applied": Row(
        "Whether what Git declares is in force in the cluster.", "", "belay status names what is not, and why.", _STATUS
    ),
    "Ready": Row(
        "Whether all is well with the repository, or with one object: the sum of its other conditions.",
        "",
        "Its reason says what is missing; belay explain REASON explains it.",
        _STATUS,
    ),
    "DocumentsRefused": Row(
        "Documents of the newest commit have errors; their last good versions stay in force.",
        "",
        "belay status shows each at file:line:column; correct them and push.",
        _STATUS,
    ),
    "FilesRefused": Row(
        "Files of the newest commit are left out unread; what they declared before stays in force.",
        "A file that is too large, no regular file, or in another encoding.",
        "belay status names each with its reason.",
        _STATUS,
    ),
    "OrdersSigned": Row(
        "Whether orders to nodes carry a signature that agents check.", "", "belay keys makes a key.", "signed.md"
    ),
    "PruneHeld": Row(
        "Deletions wait for a person, as they are more than the safety budget lets go at once.",
        "",
        "belay confirm DIGEST lets exactly these be done; belay rollback restores the documents.",
        "acts.md",
    ),
}
"""Types of conditions, of which the reasons are above."""
