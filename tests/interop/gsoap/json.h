/* Printing strings and numbers as JSON, one event a line. Owns output only; knows nothing of SOAP. */
#ifndef INTEROP_JSON_H
#define INTEROP_JSON_H

#include <stdio.h>

static void json_string(FILE *out, const char *text)
{
  const unsigned char *c;
  if (!text)
  {
    fputs("null", out);
    return;
  }
  fputc('"', out);
  for (c = (const unsigned char *)text; *c; c++)
  {
    if (*c == '"' || *c == '\\')
      fprintf(out, "\\%c", *c);
    else if (*c < 0x20)
      fprintf(out, "\\u%04x", *c);
    else
      fputc(*c, out);
  }
  fputc('"', out);
}

#endif
