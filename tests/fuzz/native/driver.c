/* Feeds inputs from stdin, each after a line with its length, where there is no libFuzzer. Before each it writes the
 * number of the input to stdout, so that the one that ended the process is known. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(void)
{
    size_t size;
    FILE *inputs = fdopen(3, "rb");
    for (unsigned long number = 0; inputs && fscanf(inputs, "%zu", &size) == 1; number++) {
        /* a block of exactly this size, so that reading beyond it is seen */
        uint8_t *data = malloc(size ? size : 1);
        if (!data || fgetc(inputs) != '\n' || fread(data, 1, size, inputs) != size)
            return 2;
        printf("%lu\n", number);
        fflush(stdout);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
